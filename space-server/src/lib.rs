//! The executor host and the serving loop: what runs handlers and derivations for everybody and lands the result as
//! one derived commit per wave.
//!
//! | you need | look in |
//! | --- | --- |
//! | the wave: what sealed, what survives, what lands | [`wave`] |
//! | what may be promised as current | [`watermark`] |
//! | who demands what | [`demand`] |
//! | the guard that delivers an event once | [`in_flight`] |
//! | knobs and counters | [`settings`], [`statistics`] |

pub mod demand;
pub mod in_flight;
pub mod settings;
pub mod statistics;
pub mod watermark;
pub mod wave;
