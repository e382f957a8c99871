//! Capability flags of the hello handshake (WIRE-712): the names, and the meaning "absent is false, unknown is
//! ignored". What a server does about each is the server's business (SRV-202, SRV-203).

use crate::value::{Object, Value};

macro_rules! flags {
    ($($(#[$doc:meta])* $field:ident = $name:literal;)*) => {
        /// The flags one side of a connection advertises.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Flags {
            $(
                #[doc = concat!("`", $name, "`: ")]
                $(#[$doc])*
                pub $field: bool,
            )*
        }

        impl Flags {
            /// The names of all known flags, in the order of WIRE-712.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// Reads a hello's `flags`. `None` when a known flag holds something else than a boolean; absent and
            /// present-undefined are false, unknown names are ignored whatever they hold.
            pub fn from_object(object: &Object) -> Option<Flags> {
                let read = |name: &str| match object.get(name) {
                    None | Some(Value::Undefined) => Some(false),
                    Some(Value::Bool(set)) => Some(*set),
                    Some(_) => None,
                };
                Some(Flags { $($field: read($name)?,)* })
            }

            /// Every known flag as a boolean.
            pub fn to_object(self) -> Object {
                [$(($name, self.$field),)*].into_iter().collect()
            }

            /// What both sides have.
            #[must_use]
            pub fn both(self, other: Flags) -> Flags {
                Flags { $($field: self.$field && other.$field,)* }
            }
        }
    };
}

flags! {
    /// Which representation of links and entity references is used; has to be equal on both sides (WIRE-501).
    modern_cell_rep = "modernCellRep";
    /// Link schemas of sync frames are interned when both sides have it (WIRE-770).
    sync_schema_table_v2 = "syncSchemaTableV2";
    /// The server understands commit preconditions; informational.
    commit_preconditions = "commitPreconditions";
    /// A pending read may name several layers and a basis.
    pending_read_stacks = "pendingReadStacks";
    /// The server sends a catch-up marker after every verdict that owes one (WIRE-754).
    verdict_catch_up_markers = "verdictCatchUpMarkers";
    /// Folded SQLite writes are label-checked at commit.
    sqlite_commit_row_label_eval = "sqliteCommitRowLabelEval";
    /// `entity-id.list` exists.
    entity_id_listing = "entityIdListing";
    /// `entity-id.list` pages.
    entity_id_pagination = "entityIdPagination";
    /// `entity-id.exists` exists.
    entity_id_lookup = "entityIdLookup";
    /// A session may carry a read ceiling (WIRE-776).
    session_read_ceiling = "sessionReadCeiling";
    /// A watch request may carry views (WIRE-775).
    view_scoped_replication_v1 = "viewScopedReplicationV1";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_712_unknown_flags_are_ignored_and_known_ones_checked() {
        let read = |value: Value| value.as_object().and_then(Flags::from_object);
        let flags =
            read(crate::value!({ "syncSchemaTableV2": true, "stableExpressionResultIds": "later" })).unwrap();
        assert_eq!(
            flags,
            Flags {
                sync_schema_table_v2: true,
                ..Flags::default()
            }
        );
        for name in Flags::NAMES {
            let object: Object = [(*name, 1)].into_iter().collect();
            assert_eq!(Flags::from_object(&object), None, "{name}");
            let object: Object = [(*name, Value::Undefined)].into_iter().collect();
            assert_eq!(Flags::from_object(&object), Some(Flags::default()), "{name}");
        }
    }

    #[test]
    fn srv_202_a_server_states_every_known_flag() {
        let object = Flags::default().to_object();
        assert_eq!(object.len(), Flags::NAMES.len());
        assert_eq!(Flags::from_object(&object), Some(Flags::default()));
    }
}
