//! What a store holds, looked at from outside.

use memory_engine::StoreRoot;
use memory_wire::SpaceId;
use memory_wire::well_known::WATERMARK_DOCUMENT;

/// A commit as stored.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) seq: u64,
    pub(crate) class: String,
    pub(crate) holder: Option<String>,
    pub(crate) session: String,
    pub(crate) consequence_of: Vec<String>,
    pub(crate) derived_through: Option<u64>,
    pub(crate) annotations: serde_json::Value,
    /// `id@scope key`, in operation order.
    pub(crate) writes: Vec<String>,
}

/// The store of one space, looked at from outside.
pub(crate) struct Rows(rusqlite::Connection);

impl Rows {
    pub(crate) fn open(data: &std::path::Path, space: &SpaceId) -> Rows {
        let path = StoreRoot::configured(data)
            .and_then(|root| root.store_path(space))
            .expect("a path");
        Rows(rusqlite::Connection::open(path).expect("a store"))
    }

    /// The acting principal and session a commit was delegated for, with its capability reference.
    pub(crate) fn carriage(&self, seq: u64) -> [Option<String>; 3] {
        let query = "SELECT acting_principal, acting_session, capability_ref FROM \"commit\" WHERE seq = ?1";
        let columns = |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
        self.0
            .query_row(query, [i64::try_from(seq).expect("small")], columns)
            .expect("a commit")
    }

    /// Appends that wait for their delivery.
    pub(crate) fn undelivered(&self) -> i64 {
        self.0
            .query_row("SELECT COUNT(*) FROM execution_outbox", [], |row| row.get(0))
            .expect("a count")
    }

    pub(crate) fn head(&self) -> u64 {
        let seq: i64 = self
            .0
            .query_row("SELECT COALESCE(MAX(seq), 0) FROM \"commit\"", [], |row| {
                row.get(0)
            })
            .expect("a head");
        seq.unsigned_abs()
    }

    /// The commits after `seq`, in order.
    pub(crate) fn since(&self, seq: u64) -> Vec<Row> {
        let mut statement = self
            .0
            .prepare(
                "SELECT seq, class, holder, session_id, consequence_of, derived_through, annotations FROM \"commit\" \
                 WHERE seq > ?1 ORDER BY seq",
            )
            .expect("commits");
        let rows = statement
            .query_map([i64::try_from(seq).expect("small")], |row| {
                let text = |index| row.get::<_, Option<String>>(index);
                let json = |text: Option<String>| {
                    let text = text.unwrap_or_else(|| "null".to_owned());
                    let plain = text.strip_prefix("fvj1:").unwrap_or(&text).to_owned();
                    serde_json::from_str::<serde_json::Value>(&plain).expect("json")
                };
                let events = json(text(4)?);
                Ok(Row {
                    seq: row.get::<_, i64>(0)?.unsigned_abs(),
                    class: row.get(1)?,
                    holder: text(2)?,
                    session: row.get(3)?,
                    consequence_of: events
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(|event| event.as_str().map(str::to_owned))
                        .collect(),
                    derived_through: row.get::<_, Option<i64>>(5)?.map(i64::unsigned_abs),
                    annotations: json(text(6)?),
                    writes: Vec::new(),
                })
            })
            .expect("rows");
        rows.map(|row| {
            let mut row = row.expect("a row");
            row.writes = self.writes(row.seq);
            row
        })
        .collect()
    }

    fn writes(&self, seq: u64) -> Vec<String> {
        let mut statement = self
            .0
            .prepare("SELECT id, scope_key FROM revision WHERE commit_seq = ?1 ORDER BY op_index")
            .expect("revisions");
        let rows = statement
            .query_map([i64::try_from(seq).expect("small")], |row| {
                Ok(format!(
                    "{}@{}",
                    row.get::<_, String>(0)?,
                    row.get::<_, String>(1)?
                ))
            })
            .expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    }
}

impl Row {
    /// It carries the watermark and nothing else.
    pub(crate) fn is_advance(&self) -> bool {
        self.class == "derived" && self.writes == [format!("{WATERMARK_DOCUMENT}@space")]
    }
}
