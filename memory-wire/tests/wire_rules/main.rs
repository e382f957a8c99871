//! Rules of the wire format that the golden vectors show only beside others, each by a case of its own: names, values,
//! links, the shapes of messages, the signed session open, and what never crosses the wire. What servers and clients *do*
//! about a message is tested where it is done.

mod messages;
mod names;
mod pure;
mod server_execution;
mod session_open;
mod sync;
mod values;
