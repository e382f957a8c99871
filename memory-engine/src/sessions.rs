//! The highest localSeq that was stored for sessions that commit, so that a new commit of theirs is known to be new without
//! asking for it (ENG-310). What is remembered may be too high, after a commit that was taken back, and then asks in vain;
//! it is never too low while this process alone writes, and is forgotten as soon as another one has.

use memory_wire::ids::LocalSeq;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Sessions remembered; beyond that all are forgotten and asked for again.
const SESSIONS: usize = 4_096;

/// Highest localSeq by session key; `None` of a session that has stored nothing.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<FxHashMap<String, Option<LocalSeq>>>);

impl Sessions {
    /// Whether nothing can be stored under this key at `local_seq`; `None` when nothing is known of the session.
    pub(crate) fn is_new(&self, session_key: &str, local_seq: LocalSeq) -> Option<bool> {
        let highest = *self.0.lock().get(session_key)?;
        Some(highest.is_none_or(|highest| local_seq > highest))
    }

    /// Remembers what the store holds as the open transaction sees it.
    pub(crate) fn learn(&self, session_key: &str, highest: Option<LocalSeq>) {
        let mut known = self.0.lock();
        if known.len() >= SESSIONS {
            known.clear();
        }
        known.insert(session_key.to_owned(), highest);
    }

    /// A commit of the session is about to be stored.
    pub(crate) fn advance(&self, session_key: &str, local_seq: LocalSeq) {
        if let Some(highest) = self.0.lock().get_mut(session_key) {
            *highest = (*highest).max(Some(local_seq));
        }
    }

    /// Somebody else wrote, or may from now on.
    pub(crate) fn forget(&self) {
        *self.0.lock() = FxHashMap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eng_310_only_what_lies_above_all_that_was_stored_is_known_to_be_new() {
        let sessions = Sessions::default();
        assert_eq!(sessions.is_new("a", LocalSeq(1)), None, "nothing is known");
        sessions.advance("a", LocalSeq(7));
        assert_eq!(
            sessions.is_new("a", LocalSeq(8)),
            None,
            "earlier ones may be higher"
        );
        sessions.learn("a", None);
        assert_eq!(sessions.is_new("a", LocalSeq(1)), Some(true));
        sessions.advance("a", LocalSeq(3));
        sessions.advance("a", LocalSeq(2));
        assert_eq!(sessions.is_new("a", LocalSeq(3)), Some(false));
        assert_eq!(
            sessions.is_new("a", LocalSeq(1)),
            Some(false),
            "it may be there or not"
        );
        assert_eq!(sessions.is_new("a", LocalSeq(4)), Some(true));
        sessions.forget();
        assert_eq!(sessions.is_new("a", LocalSeq(4)), None);
    }
}
