//! Every knob an operator can turn, in one table: key, unit, default, environment name, flag and meaning (SRV §14).
//! Read by the program at start, which asks [`Knobs::resolve`]; `docs/knobs.md` is [`document`] written down.
//!
//! A knob has one name, its key: `limits.session_ttl` is `session_ttl` in the table `[limits]` of the TOML file and
//! `--limits-session-ttl` on the command line; environment names are listed with it. What is said later wins: default,
//! file, environment, command line. A value that cannot mean anything, and a key nobody knows, refuse to start by name.

mod kinds;
mod page;
mod table;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memory_engine::Durability;
use memory_wire::Did;

use crate::config::AclMode;
use crate::limits::Limits;
use crate::rates::Rates;

/// The revision a program was built from: a variable of its build, not of its process (SRV-120).
pub const BUILT_FROM: &str = "BUILD_GIT_SHA";

/// A variable of the process; of [`BUILT_FROM`], what it was when the program was built.
pub fn environment(name: &str) -> Option<String> {
    match name {
        BUILT_FROM => option_env!("BUILD_GIT_SHA").map(str::to_owned),
        name => std::env::var(name).ok(),
    }
}

pub use page::document;
pub use table::KNOBS;

/// One row of the table.
pub struct Knob {
    /// Its name: the dotted key of the TOML file.
    pub key: &'static str,
    /// What a value is, as the table shows it.
    pub unit: &'static str,
    /// Environment names that set it; the first one that is set counts.
    pub environment: &'static [&'static str],
    /// What it does.
    pub meaning: &'static str,
    /// What a value may be, for the error.
    expected: &'static str,
    /// What to do with an environment value that means nothing.
    garbage: Garbage,
    /// Never shown.
    secret: bool,
    set: fn(&mut Knobs, &str) -> Option<()>,
    show: fn(&Knobs) -> String,
}

/// What becomes of an environment value that cannot mean anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Garbage {
    /// Refuse to start.
    Refuse,
    /// Warn and go on as if it were unset: the serving loop's variables have always been read so (SS-11, SS-12).
    Ignore,
}

/// Every knob's value. `Knobs::default()` is what a server starts with when it is told nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knobs {
    /// Data directory: the stores of the spaces and the node's own key.
    pub data: PathBuf,
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// `production`, or one of `development`, `test`, `staging`.
    pub environment: String,
    /// PKCS#8 key file of the server's identity.
    pub identity: Option<PathBuf>,
    /// Passphrase the identity is derived from when there is no key file.
    pub identity_passphrase: Option<String>,
    /// How access decisions are applied.
    pub acl_mode: AclMode,
    /// Principals with OWNER everywhere.
    pub service_principals: BTreeSet<Did>,
    /// What an acknowledged commit survives.
    pub durability: Durability,
    /// Whether the dump routes exist, outside production.
    pub dumps: bool,
    /// Revision of the running program.
    pub git_sha: Option<String>,
    /// The serving loop.
    pub execution: ExecutionKnobs,
    /// Rate limits.
    pub rates: Rates,
    /// Bounds and timings.
    pub limits: Limits,
}

/// Knobs of the serving loop, which is another crate's: here they are only read and documented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionKnobs {
    /// Whether handlers and derivations run in this process.
    pub enabled: bool,
    /// Settling longer than this cuts the wave.
    pub flush_deadline: Duration,
    /// Life of a space's lease after its last renewal.
    pub lease_ttl: Duration,
    /// Network effects in flight at once; `None` is no cap.
    pub max_outstanding_effects: Option<NonZeroU32>,
    /// Network effects started per second; `None` is unpaced.
    pub egress_per_second: Option<NonZeroU32>,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs {
            data: "./cache/memory/".into(),
            host: Ipv4Addr::UNSPECIFIED.into(),
            port: 8000,
            environment: "development".into(),
            identity: None,
            identity_passphrase: None,
            acl_mode: AclMode::Enforce,
            service_principals: BTreeSet::new(),
            durability: Durability::Full,
            dumps: false,
            git_sha: None,
            execution: ExecutionKnobs {
                enabled: false,
                flush_deadline: Duration::from_millis(100),
                lease_ttl: Duration::from_secs(15),
                max_outstanding_effects: NonZeroU32::new(16),
                egress_per_second: None,
            },
            rates: Rates::CONFIGURED,
            limits: Limits::default(),
        }
    }
}

/// A configuration nothing can be started with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KnobError {
    /// A value that cannot mean anything.
    #[error("{name} is {found:?}, expected {expected}")]
    Value {
        /// The variable, flag or key that carries it.
        name: String,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: &'static str,
    },
    /// A key of the file that is no knob.
    #[error("{file}: unknown key {key:?}; the keys are listed in docs/knobs.md and by --help")]
    UnknownKey {
        /// The file.
        file: String,
        /// The key, dotted.
        key: String,
    },
    /// A file that is no TOML.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Where a knob's value was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere.
    Default,
    /// In the configuration file.
    File,
    /// In this environment variable.
    Environment(&'static str),
    /// On the command line.
    Flag,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File => f.write_str("file"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag => f.write_str("flag"),
        }
    }
}

/// What an operator said, layer by layer.
#[derive(Debug, Default)]
pub struct Said<'a> {
    /// Content of the configuration file, with its path for errors.
    pub file: Option<(&'a Path, &'a str)>,
    /// Values of the command line by key.
    pub flags: Vec<(&'a str, &'a str)>,
}

/// Knobs with where each was said.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The values.
    pub knobs: Knobs,
    origins: Vec<Origin>,
}

impl Knob {
    /// Its command line option, without the dashes.
    pub fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    /// Its value in `knobs`, as it would be written; empty when unset.
    pub fn shown(&self, knobs: &Knobs) -> String {
        (self.show)(knobs)
    }

    fn set(&self, knobs: &mut Knobs, name: impl Into<String>, text: &str) -> Result<(), KnobError> {
        (self.set)(knobs, text.trim()).ok_or_else(|| KnobError::Value {
            name: name.into(),
            found: text.to_owned(),
            expected: self.expected,
        })
    }

    /// The name that is set in the environment, and its value. Blank counts as unset.
    fn in_environment(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
        self.environment.iter().find_map(|name| {
            let text = lookup(name)?;
            (!text.trim().is_empty()).then_some((*name, text))
        })
    }
}

impl Knobs {
    /// What the operator said, over `self`: file, then environment (`lookup`), then command line.
    ///
    /// # Errors
    /// A value that cannot mean anything, a key that is no knob, a file that is no TOML; each named.
    pub fn resolve(
        mut self,
        said: &Said<'_>,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Resolved, KnobError> {
        let in_file = match said.file {
            Some((path, text)) => file_values(path, text)?,
            None => Vec::new(),
        };
        let mut origins = vec![Origin::Default; KNOBS.len()];
        // Whole layers one after the other, because a knob may write what another one shows: `listen` is host and port.
        for (at, knob) in KNOBS.iter().enumerate() {
            if let Some((_, text)) = in_file.iter().find(|(key, _)| key == knob.key) {
                knob.set(&mut self, knob.key, text)?;
                origins[at] = Origin::File;
            }
        }
        for (at, knob) in KNOBS.iter().enumerate() {
            let Some((name, text)) = knob.in_environment(lookup) else {
                continue;
            };
            match (knob.set(&mut self, name, &text), knob.garbage) {
                (Ok(()), _) => origins[at] = Origin::Environment(name),
                (Err(error), Garbage::Refuse) => return Err(error),
                (Err(error), Garbage::Ignore) => tracing::warn!(%error, "ignored"),
            }
        }
        for (at, knob) in KNOBS.iter().enumerate() {
            if let Some((_, text)) = said.flags.iter().find(|(key, _)| *key == knob.key) {
                knob.set(&mut self, format!("--{}", knob.flag()), text)?;
                origins[at] = Origin::Flag;
            }
        }
        Ok(Resolved { knobs: self, origins })
    }
}

impl Resolved {
    /// The whole configuration as a TOML file that would give it again, each line with where its value was said.
    /// Secrets are left out.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut table = "";
        for (knob, origin) in KNOBS.iter().zip(&self.origins) {
            let (of, name) = knob.key.rsplit_once('.').unwrap_or(("", knob.key));
            if of != table {
                text.push_str(&format!("\n[{of}]\n"));
                table = of;
            }
            let shown = knob.shown(&self.knobs);
            let line = match (shown.is_empty(), knob.secret) {
                (true, _) => format!("# {name} is unset"),
                (false, true) => format!("# {name} is set, and secret"),
                (false, false) => format!("{name} = {}", kinds::as_toml(&shown)),
            };
            text.push_str(&format!("{line}  # {origin}\n"));
        }
        text
    }
}

/// The values of a configuration file by dotted key.
fn file_values(path: &Path, text: &str) -> Result<Vec<(String, String)>, KnobError> {
    let file = path.display().to_string();
    let root: toml::Table = text.parse().map_err(|error: toml::de::Error| KnobError::File {
        file: file.clone(),
        reason: error.to_string(),
    })?;
    let mut values = Vec::new();
    flatten(&file, "", &root, &mut values)?;
    Ok(values)
}

fn flatten(
    file: &str,
    within: &str,
    table: &toml::Table,
    values: &mut Vec<(String, String)>,
) -> Result<(), KnobError> {
    for (name, value) in table {
        let key = match within {
            "" => name.clone(),
            within => format!("{within}.{name}"),
        };
        let known = KNOBS.iter().find(|knob| knob.key == key);
        let is_group = KNOBS.iter().any(|knob| {
            knob.key
                .strip_prefix(key.as_str())
                .is_some_and(|rest| rest.starts_with('.'))
        });
        match (value, known) {
            (toml::Value::Table(inner), _) if is_group => flatten(file, &key, inner, values)?,
            (value, Some(knob)) => match kinds::from_toml(value) {
                Some(text) => values.push((key, text)),
                None => {
                    return Err(KnobError::Value {
                        name: format!("{file}: {key}"),
                        found: value.to_string(),
                        expected: knob.expected,
                    });
                }
            },
            (_, None) => {
                return Err(KnobError::UnknownKey {
                    file: file.to_owned(),
                    key,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        file: Option<&str>,
        environment: &[(&str, &str)],
        flags: &[(&str, &str)],
    ) -> Result<Resolved, KnobError> {
        let said = Said {
            file: file.map(|text| (Path::new("server.toml"), text)),
            flags: flags.to_vec(),
        };
        Knobs::default().resolve(&said, &|name| {
            environment
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_said_is_the_default() {
        let resolved = resolve(None, &[], &[]).expect("the defaults stand");
        assert_eq!(resolved.knobs, Knobs::default());
        assert!(resolved.origins.iter().all(|origin| *origin == Origin::Default));
    }

    #[test]
    fn flags_win_over_environment_over_file_over_default() {
        let file = "port = 1\n[limits]\nsession_ttl = \"10s\"\nmax_watches = 7\n";
        let of = |environment: &[(&str, &str)], flags: &[(&str, &str)]| {
            resolve(Some(file), environment, flags)
                .expect("well-formed")
                .knobs
        };
        assert_eq!(of(&[], &[]).limits.session_ttl, Duration::from_secs(10));
        assert_eq!(of(&[], &[]).limits.max_watches, 7);
        let by_environment = of(&[("MEMORY_SESSION_TTL", "20s"), ("PORT", "2")], &[]);
        assert_eq!(
            (by_environment.limits.session_ttl, by_environment.port),
            (Duration::from_secs(20), 2)
        );
        let by_flag = of(
            &[("MEMORY_SESSION_TTL", "20s"), ("PORT", "2")],
            &[("limits.session_ttl", "1500ms"), ("listen", "127.0.0.1:3")],
        );
        assert_eq!(
            (by_flag.limits.session_ttl, by_flag.port),
            (Duration::from_millis(1500), 3)
        );
    }

    #[test]
    fn an_unknown_key_is_named() {
        for (file, key) in [
            ("prot = 1", "prot"),
            ("[limits]\nsesion_ttl = 1", "limits.sesion_ttl"),
            ("[nonsense]\nport = 1", "nonsense"),
        ] {
            let error = resolve(Some(file), &[], &[]).expect_err("unknown");
            assert_eq!(
                error,
                KnobError::UnknownKey {
                    file: "server.toml".into(),
                    key: key.into()
                }
            );
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn a_value_that_means_nothing_is_refused_by_name() {
        for (outcome, name) in [
            (resolve(Some("port = \"eighty\""), &[], &[]), "port"),
            (resolve(None, &[("PORT", "eighty")], &[]), "PORT"),
            (resolve(None, &[], &[("port", "eighty")]), "--port"),
            (
                resolve(None, &[("MEMORY_ACL_MODE", "on")], &[]),
                "MEMORY_ACL_MODE",
            ),
            (
                resolve(Some("[limits]\nsession_ttl = [1]"), &[], &[]),
                "limits.session_ttl",
            ),
            (resolve(Some("port = "), &[], &[]), "server.toml"),
        ] {
            let error = outcome.expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn ss_12_a_bad_value_of_the_loops_environment_means_the_default() {
        let resolved = resolve(
            None,
            &[
                ("SERVER_EXECUTION_FLUSH_DEADLINE_MS", "12abc"),
                ("EXPERIMENTAL_SERVER_EXECUTION", "TRUE"),
            ],
            &[],
        )
        .expect("ignored with a warning");
        assert_eq!(resolved.knobs, Knobs::default());
    }

    #[test]
    fn srv_14_the_first_environment_name_counts_and_blank_is_unset() {
        let of = |environment: &[(&str, &str)]| resolve(None, environment, &[]).expect("well-formed").knobs;
        assert_eq!(
            of(&[("MEMORY_DIR", "a"), ("DB_PATH", "b")]).data,
            PathBuf::from("b")
        );
        assert_eq!(
            of(&[("MEMORY_DIR", "a"), ("DB_PATH", " ")]).data,
            PathBuf::from("a")
        );
    }

    #[test]
    fn srv_120_the_revision_is_said_by_the_operator_then_the_build_then_the_host() {
        let chain = [
            ("TOOLSHED_GIT_SHA", "operator"),
            (BUILT_FROM, "build"),
            ("COMMIT_SHA", "host"),
        ];
        let of = |environment: &[(&str, &str)]| {
            let resolved = resolve(None, environment, &[]).expect("well-formed");
            resolved.knobs.git_sha
        };
        for first in 0..chain.len() {
            assert_eq!(of(&chain[first..]).as_deref(), Some(chain[first].1));
        }
        assert_eq!(
            of(&[chain[2], (BUILT_FROM, " ")]).as_deref(),
            Some("host"),
            "blank is unset"
        );
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn srv_120_the_revision_of_the_build_is_not_asked_of_the_process() {
        assert_eq!(
            environment(BUILT_FROM).as_deref(),
            option_env!("BUILD_GIT_SHA"),
            "what stood in the build's environment"
        );
        assert_eq!(environment("PATH"), std::env::var("PATH").ok());
    }

    #[test]
    fn every_value_reads_back_as_itself_and_names_are_unique() {
        let defaults = Knobs::default();
        for knob in KNOBS {
            let shown = knob.shown(&defaults);
            if shown.is_empty() {
                continue;
            }
            let mut again = defaults.clone();
            assert_eq!((knob.set)(&mut again, &shown), Some(()), "{}: {shown}", knob.key);
            assert_eq!(again, defaults, "{}: {shown}", knob.key);
        }
        let mut names: Vec<&str> = KNOBS
            .iter()
            .flat_map(|knob| knob.environment.iter().copied())
            .collect();
        let mut keys: Vec<&str> = KNOBS.iter().map(|knob| knob.key).collect();
        let (n, k) = (names.len(), keys.len());
        names.sort_unstable();
        names.dedup();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!((names.len(), keys.len()), (n, k), "a name stands twice");
    }

    #[test]
    fn every_limit_is_a_knob() {
        let limits = format!("{:#?}", Limits::default());
        let fields: Vec<&str> = limits
            .lines()
            .filter_map(|line| line.strip_prefix("    ")?.split_once(": "))
            .map(|(field, _)| field)
            .collect();
        assert!(fields.len() > 20, "the fields were not found in {limits}");
        for field in fields {
            let key = format!("limits.{field}");
            assert!(KNOBS.iter().any(|knob| knob.key == key), "{key} is no knob");
        }
    }

    #[test]
    fn the_printed_configuration_gives_itself_again() {
        let said = [
            ("limits.session_ttl", "1500ms"),
            ("limits.outbound_cap", "1MiB"),
            ("rates.commits_per_second", "off"),
            ("service_principals", "did:key:zA, did:key:zB"),
            ("identity_passphrase", "open sesame"),
        ];
        let resolved = resolve(None, &[("MEMORY_ACL_MODE", "observe")], &said).expect("well-formed");
        let printed = resolved.to_toml();
        assert!(printed.contains("session_ttl = \"1500ms\"  # flag"), "{printed}");
        assert!(
            printed.contains("acl_mode = \"observe\"  # environment MEMORY_ACL_MODE"),
            "{printed}"
        );
        assert!(!printed.contains("sesame"), "a secret was printed");
        let mut expected = resolved.knobs;
        expected.identity_passphrase = None;
        assert_eq!(
            resolve(Some(&printed), &[], &[]).expect("its own output").knobs,
            expected
        );
    }
}
