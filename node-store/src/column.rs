//! The closed set of columns, in declaration order, and what of each may leave the machine.
//!
//! Every backend creates exactly these; transactions replay in this order. Rules: NODE-3, NODE-10, NODE-25.

use std::fmt;

use crate::error::StoreError;

/// What of a column reaches other machines (NODE-10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Replication {
    /// Every row's content reaches peers (private halves inside a value are still removed on the way).
    Replicated,
    /// No row ever leaves this machine.
    NodeLocal,
    /// Decided row by row: by family prefix in `Group`, by scope in `Generic`.
    Mixed,
}

macro_rules! columns {
    ($( $(#[$doc:meta])* $name:ident = $replication:ident, )*) => {
        /// A column family. The variant's name is the family's name in every backend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Column {
            $( $(#[$doc])* $name, )*
        }

        impl Column {
            /// All columns in declaration order, which is replay order.
            pub const ALL: &'static [Column] = &[$(Column::$name),*];

            /// The family's name on disk, without any change of case.
            pub const fn name(self) -> &'static str {
                match self { $(Column::$name => stringify!($name)),* }
            }

            /// Which part of the column may be exported (NODE-10).
            pub const fn replication(self) -> Replication {
                match self { $(Column::$name => Replication::$replication),* }
            }
        }
    };
}

columns! {
    /// Per-context metadata: root hash, DAG heads, application.
    Meta = Replicated,
    /// Per-context revision counters.
    Config = Replicated,
    /// Context members' public keys, and the private half where this node owns one.
    Identity = Replicated,
    /// Shared application state.
    State = Replicated,
    /// Private state of this node.
    PrivateState = NodeLocal,
    /// Causal deltas, one DAG a context.
    Delta = Replicated,
    /// Metadata of content-addressed binaries.
    Blobs = Replicated,
    /// Installed programs.
    Application = Replicated,
    /// Names of contexts, keys and applications.
    Alias = Replicated,
    /// Rows that no other column describes.
    Generic = Mixed,
    /// Governance records, told apart by a one-byte prefix.
    Group = Mixed,
    /// Counters and leave markers of a context.
    ContextLocal = NodeLocal,
    /// Derived order of sorted collections.
    SortedIndex = NodeLocal,
    /// For which state of a collection its index rows hold.
    SortedIndexMeta = NodeLocal,
    /// Deltas that arrived for code this node does not run yet.
    AbsorbBuffer = NodeLocal,
    /// Marker: the last migration attempt did not complete.
    ContextMigrationFailed = NodeLocal,
    /// Marker: run this old code although the application row names newer code.
    ContextExecutingBlob = NodeLocal,
    /// Marker: the code this context last activated.
    ContextActivatedBlob = NodeLocal,
    /// Marker: the state version of that code.
    ContextActivatedStateVersion = NodeLocal,
    /// Marker: the code which an in-place installation replaced.
    ApplicationPreviousBlob = NodeLocal,
    /// Marker: an operator asked for a full replacement of this context's state.
    ContextResyncRequested = NodeLocal,
    /// The op store: one DAG of signed operations a scope.
    UnifiedOp = Replicated,
}

impl Column {
    /// How many columns there are.
    pub const COUNT: usize = Column::ALL.len();

    /// The column of a family name, if the name belongs to the set.
    pub fn from_name(name: &str) -> Option<Column> {
        Column::ALL.iter().copied().find(|column| column.name() == name)
    }

    /// Position in declaration order.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The columns that one opened backend really has. A store that is opened read-only may lack newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnSet(u32);

impl ColumnSet {
    /// The whole set.
    pub const ALL: ColumnSet = ColumnSet((1 << Column::COUNT) - 1);
    /// No column.
    pub const EMPTY: ColumnSet = ColumnSet(0);

    /// This set and one column more.
    #[must_use]
    pub const fn with(self, column: Column) -> ColumnSet {
        ColumnSet(self.0 | 1 << column.index())
    }

    /// This set without one column.
    #[must_use]
    pub const fn without(self, column: Column) -> ColumnSet {
        ColumnSet(self.0 & !(1 << column.index()))
    }

    /// Whether the column is there.
    pub const fn contains(self, column: Column) -> bool {
        self.0 & (1 << column.index()) != 0
    }

    /// The columns, in declaration order.
    pub fn iter(self) -> impl Iterator<Item = Column> {
        Column::ALL
            .iter()
            .copied()
            .filter(move |column| self.contains(*column))
    }

    /// Refuses with *every* column that is missing, so that nothing is written before all are known (NODE-5).
    pub fn require(self, wanted: impl IntoIterator<Item = Column>) -> Result<(), StoreError> {
        let missing: Vec<Column> = wanted
            .into_iter()
            .filter(|column| !self.contains(*column))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(StoreError::UnknownColumns { columns: missing })
        }
    }
}

impl FromIterator<Column> for ColumnSet {
    fn from_iter<I: IntoIterator<Item = Column>>(columns: I) -> Self {
        columns.into_iter().fold(ColumnSet::EMPTY, ColumnSet::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_10_there_are_twenty_two_columns_and_names_are_the_identifiers() {
        assert_eq!(Column::COUNT, 22);
        assert_eq!(Column::ALL[0].name(), "Meta");
        assert_eq!(Column::ALL[21].name(), "UnifiedOp");
        for (index, column) in Column::ALL.iter().enumerate() {
            assert_eq!(column.index(), index);
            assert_eq!(Column::from_name(column.name()), Some(*column));
        }
        assert_eq!(Column::from_name("meta"), None);
    }

    #[test]
    fn node_5_every_missing_column_is_named() {
        let set = ColumnSet::ALL.without(Column::State).without(Column::UnifiedOp);
        assert_eq!(set.iter().count(), 20);
        let error = set
            .require([Column::Meta, Column::State, Column::UnifiedOp])
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the store has no column State, UnifiedOp; nothing was written"
        );
    }
}
