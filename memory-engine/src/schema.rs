//! The tables and indexes of a store (ENG §1.3), as text. Names, columns, their order and their constraints are
//! shared with the reference implementation; a store made here and one made there differ in nothing.

/// Every table and index but the two that the migrations own: `execution_outbox.source_event` (ENG-137) and
/// `idx_head_live_entity_ids` (ENG-131), which need the columns the migrations bring to old stores.
pub(crate) const CREATE: &str = r#"
CREATE TABLE IF NOT EXISTS authorization (
  ref TEXT NOT NULL PRIMARY KEY,
  authorization JSON NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now'))
);
CREATE TABLE IF NOT EXISTS invocation (
  ref TEXT NOT NULL PRIMARY KEY,
  iss TEXT NOT NULL,
  aud TEXT,
  cmd TEXT NOT NULL,
  sub TEXT NOT NULL,
  invocation JSON NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now'))
);
CREATE INDEX IF NOT EXISTS idx_invocation_sub ON invocation (sub);
CREATE INDEX IF NOT EXISTS idx_invocation_cmd ON invocation (cmd);
CREATE INDEX IF NOT EXISTS idx_invocation_iss ON invocation (iss);
CREATE TABLE IF NOT EXISTS "commit" (
  seq INTEGER NOT NULL PRIMARY KEY,
  branch TEXT NOT NULL DEFAULT '',
  session_id TEXT NOT NULL,
  local_seq INTEGER NOT NULL,
  invocation_ref TEXT,
  authorization_ref TEXT,
  original JSON NOT NULL,
  resolution JSON NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now')),
  class TEXT NOT NULL DEFAULT 'authored',
  holder TEXT,
  annotations JSON,
  consequence_of JSON,
  derived_through INTEGER,
  acting_principal TEXT,
  acting_session TEXT,
  capability_ref TEXT,
  FOREIGN KEY (invocation_ref) REFERENCES invocation(ref),
  FOREIGN KEY (authorization_ref) REFERENCES authorization(ref)
);
CREATE INDEX IF NOT EXISTS idx_commit_branch ON "commit" (branch);
CREATE UNIQUE INDEX IF NOT EXISTS idx_commit_session_local_seq ON "commit" (session_id, local_seq);
CREATE INDEX IF NOT EXISTS idx_commit_invocation_ref ON "commit" (invocation_ref);
CREATE TABLE IF NOT EXISTS revision (
  branch TEXT NOT NULL DEFAULT '',
  id TEXT NOT NULL,
  scope_key TEXT NOT NULL DEFAULT 'space',
  seq INTEGER NOT NULL,
  op_index INTEGER NOT NULL,
  op TEXT NOT NULL,
  data JSON,
  commit_seq INTEGER NOT NULL,
  PRIMARY KEY (branch, id, scope_key, seq, op_index),
  FOREIGN KEY (commit_seq) REFERENCES "commit"(seq)
);
CREATE INDEX IF NOT EXISTS idx_revision_branch_id_seq ON revision (branch, id, scope_key, seq, op_index);
CREATE INDEX IF NOT EXISTS idx_revision_commit ON revision (commit_seq);
CREATE INDEX IF NOT EXISTS idx_revision_branch ON revision (branch, seq);
CREATE TABLE IF NOT EXISTS head (
  branch TEXT NOT NULL,
  id TEXT NOT NULL,
  scope_key TEXT NOT NULL DEFAULT 'space',
  seq INTEGER NOT NULL,
  op_index INTEGER NOT NULL,
  op TEXT NOT NULL CHECK (op IN ('set', 'patch', 'delete')),
  PRIMARY KEY (branch, id, scope_key)
);
CREATE INDEX IF NOT EXISTS idx_head_branch ON head (branch);
CREATE TABLE IF NOT EXISTS snapshot (
  branch TEXT NOT NULL DEFAULT '',
  id TEXT NOT NULL,
  scope_key TEXT NOT NULL DEFAULT 'space',
  seq INTEGER NOT NULL,
  value JSON NOT NULL,
  PRIMARY KEY (branch, id, scope_key, seq)
);
CREATE INDEX IF NOT EXISTS idx_snapshot_lookup ON snapshot (branch, id, scope_key, seq);
CREATE TABLE IF NOT EXISTS branch (
  name TEXT NOT NULL PRIMARY KEY,
  parent_branch TEXT,
  fork_seq INTEGER,
  created_seq INTEGER NOT NULL DEFAULT 0,
  head_seq INTEGER NOT NULL DEFAULT 0,
  status TEXT NOT NULL DEFAULT 'active',
  created_at TEXT NOT NULL DEFAULT (datetime('now')),
  deleted_at TEXT,
  FOREIGN KEY (parent_branch) REFERENCES branch(name)
);
CREATE TABLE IF NOT EXISTS execution_lease (
  space TEXT NOT NULL PRIMARY KEY,
  holder TEXT NOT NULL,
  expires_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS scheduler_basis (
  branch TEXT NOT NULL,
  action TEXT NOT NULL,
  action_scope_key TEXT NOT NULL,
  entity_space TEXT NOT NULL,
  entity TEXT NOT NULL,
  entity_scope_key TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (branch, action, action_scope_key, entity_space, entity, entity_scope_key)
);
CREATE INDEX IF NOT EXISTS idx_scheduler_basis_entity
  ON scheduler_basis (branch, entity_space, entity, entity_scope_key);
CREATE TABLE IF NOT EXISTS execution_outbox (
  id INTEGER PRIMARY KEY,
  branch TEXT NOT NULL,
  target_space TEXT NOT NULL,
  target_stream TEXT NOT NULL,
  target_stream_link TEXT,
  event_id TEXT NOT NULL,
  payload TEXT NOT NULL,
  acting_principal TEXT,
  acting_session TEXT,
  sessionless_space_scope INTEGER,
  capability_ref TEXT NOT NULL,
  created_seq INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS idx_execution_outbox_branch ON execution_outbox (branch);
CREATE TABLE IF NOT EXISTS blob_store (
  hash TEXT NOT NULL PRIMARY KEY,
  data BLOB NOT NULL,
  content_type TEXT NOT NULL,
  size INTEGER NOT NULL
);
INSERT OR IGNORE INTO branch (name, parent_branch, fork_seq, created_seq, head_seq, status)
VALUES ('', NULL, NULL, 0, 0, 'active');
"#;

/// The partial index of live ids; it needs `head.op`, so it comes after the migrations.
pub(crate) const CREATE_LIVE_IDS: &str = "CREATE INDEX IF NOT EXISTS idx_head_live_entity_ids \
     ON head (branch, scope_key, id, op) WHERE op <> 'delete'";
