//! Sessions, watches, filtered push, access control, transport.
