//! The served example: one space with a lunch poll in it, made at first start, and the page that speaks to it.

pub mod lunch_poll;
mod page;
mod site;

pub use page::routes;
pub use site::{DemoError, DemoSite, provision};
