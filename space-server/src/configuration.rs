//! What the operator says: command line, environment and configuration file, read once at start (SRV §14, SS-10). Every
//! setting is a row of [`memory_server::knobs`]; this room gives the rows to the command line and the outcome to the
//! program.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use memory_server::knobs::{KNOBS, KnobError, Knobs, Resolved, Said};
use thiserror::Error;

use crate::settings::LoopSettings;

/// The program.
#[derive(Debug, Parser)]
#[command(
    name = "space-server",
    version,
    about = "A server for multi-user reactive documents"
)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a data directory.
    Serve(ServeArguments),
    /// Serve a data directory with the lunch poll in it, and print the URL to open.
    Demo(ServeArguments),
}

/// The configuration file's environment name; its flag is `--config`.
const CONFIG_VARIABLE: &str = "SPACE_SERVER_CONFIG";

/// What the command line says: the configuration file, knobs by key, and whether to serve at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeArguments {
    /// TOML file of knobs.
    pub config: Option<PathBuf>,
    /// Print the configuration the server would start with, and end.
    pub print_config: bool,
    /// Knobs said on the command line, by key.
    pub knobs: Vec<(&'static str, String)>,
}

impl Args for ServeArguments {
    fn augment_args(command: clap::Command) -> clap::Command {
        let command = command
            .arg(
                Arg::new("config")
                    .long("config")
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .help(format!("TOML file of knobs; also {CONFIG_VARIABLE}")),
            )
            .arg(
                Arg::new("print-config")
                    .long("print-config")
                    .action(ArgAction::SetTrue)
                    .help("Print the configuration as a TOML file, with where each value was said, and end"),
            );
        let defaults = Knobs::default();
        KNOBS.iter().fold(command, |command, knob| {
            let mut help = knob.meaning.to_owned();
            let shown = knob.shown(&defaults);
            if !shown.is_empty() {
                help.push_str(&format!(" [default: {shown}]"));
            }
            if !knob.environment.is_empty() {
                help.push_str(&format!(" [env: {}]", knob.environment.join(", ")));
            }
            command.arg(
                Arg::new(knob.key)
                    .long(knob.flag())
                    .value_name(knob.unit)
                    .help(help),
            )
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ServeArguments::augment_args(command)
    }
}

impl FromArgMatches for ServeArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ServeArguments, clap::Error> {
        Ok(ServeArguments {
            config: matches.get_one::<PathBuf>("config").cloned(),
            print_config: matches.get_flag("print-config"),
            knobs: KNOBS
                .iter()
                .filter_map(|knob| Some((knob.key, matches.get_one::<String>(knob.key)?.clone())))
                .collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ServeArguments::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Who the process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentitySource {
    /// A PKCS#8 key file.
    File(PathBuf),
    /// A passphrase (deprecated: whoever knows it is this server).
    Passphrase(String),
    /// The node's own key, kept in the data directory and made at first start.
    DataDirectory,
}

/// Everything the program is told.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Every knob, with where it was said.
    pub resolved: Resolved,
    /// Who the process is.
    pub identity: IdentitySource,
    /// The serving loop's settings.
    pub settings: LoopSettings,
    /// A development, test or staging environment, as opposed to production.
    pub development: bool,
}

/// A configuration that cannot be started with.
#[derive(Debug, Error)]
pub enum ConfigurationError {
    /// A knob is set to what it cannot mean, or is none.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The configuration file cannot be read.
    #[error("reading the configuration file {}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl Configuration {
    /// Combines command line, environment and configuration file. `server_execution_default` is what the switch means
    /// when unset: off for `serve` (SS-10), on for the demo, which is nothing without it.
    ///
    /// # Errors
    /// A file that cannot be read, an unknown key, a value that means nothing; each named.
    pub fn from_environment(
        arguments: &ServeArguments,
        server_execution_default: bool,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Configuration, ConfigurationError> {
        let path = arguments.config.clone().or_else(|| {
            lookup(CONFIG_VARIABLE)
                .filter(|path| !path.trim().is_empty())
                .map(PathBuf::from)
        });
        let text = match &path {
            Some(path) => Some(
                std::fs::read_to_string(path).map_err(|error| ConfigurationError::File {
                    path: path.clone(),
                    error,
                })?,
            ),
            None => None,
        };
        let said = Said {
            file: path.as_deref().map(Path::new).zip(text.as_deref()),
            flags: arguments
                .knobs
                .iter()
                .map(|(key, text)| (*key, text.as_str()))
                .collect(),
        };
        let mut defaults = Knobs::default();
        defaults.execution.enabled = server_execution_default;
        let resolved = defaults.resolve(&said, &lookup)?;
        let knobs = &resolved.knobs;
        Ok(Configuration {
            identity: match (&knobs.identity, &knobs.identity_passphrase) {
                (Some(path), _) => IdentitySource::File(path.clone()),
                (None, Some(passphrase)) => IdentitySource::Passphrase(passphrase.clone()),
                (None, None) => IdentitySource::DataDirectory,
            },
            settings: LoopSettings::from_knobs(&knobs.execution),
            development: matches!(knobs.environment.as_str(), "development" | "test" | "staging"),
            resolved,
        })
    }

    /// The knobs.
    pub fn knobs(&self) -> &Knobs {
        &self.resolved.knobs
    }

    /// Where to listen.
    pub fn listen(&self) -> SocketAddr {
        SocketAddr::new(self.knobs().host, self.knobs().port)
    }

    /// Whether the dump routes exist (SRV-123).
    pub fn dumps(&self) -> bool {
        self.development && self.knobs().dumps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_engine::Durability;
    use memory_server::AclMode;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> Result<Configuration, ConfigurationError> {
        Configuration::from_environment(&ServeArguments::default(), false, |name| {
            pairs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    fn parsed(arguments: &[&str]) -> ServeArguments {
        let line = ["space-server", "serve"].iter().chain(arguments);
        match CommandLine::try_parse_from(line).expect("a command line").command {
            Command::Serve(arguments) | Command::Demo(arguments) => arguments,
        }
    }

    #[test]
    fn defaults_are_those_of_the_page() {
        let c = with(&[]).expect("the defaults stand");
        assert_eq!(c.listen().to_string(), "0.0.0.0:8000");
        let knobs = c.knobs();
        assert_eq!(
            (knobs.acl_mode, knobs.durability, knobs.execution.enabled),
            (AclMode::Enforce, Durability::Full, false)
        );
        assert_eq!(c.identity, IdentitySource::DataDirectory);
        assert_eq!(c.settings, LoopSettings::default());
    }

    #[test]
    fn srv_803_an_unknown_mode_refuses_to_start_by_name() {
        let error = with(&[("MEMORY_ACL_MODE", "on")]).expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "MEMORY_ACL_MODE is \"on\", expected off, observe or enforce"
        );
        let error = with(&[("PORT", "eighty")]).expect_err("no port");
        assert!(error.to_string().contains("PORT"));
    }

    #[test]
    fn dumps_never_exist_in_production() {
        assert!(with(&[("MEMORY_DUMP_ENABLED", "true")]).expect("fine").dumps());
        let production = with(&[("MEMORY_DUMP_ENABLED", "true"), ("ENV", "production")]);
        assert!(!production.expect("fine").dumps());
    }

    #[test]
    fn the_command_line_wins() {
        let arguments = parsed(&[
            "--data",
            "here",
            "--listen",
            "127.0.0.1:0",
            "--limits-session-ttl",
            "2s",
        ]);
        let lookup = |name: &str| {
            matches!(name, "PORT" | "MEMORY_DIR" | "DB_PATH" | "MEMORY_SESSION_TTL").then(|| "9".to_owned())
        };
        let c = Configuration::from_environment(&arguments, true, lookup).expect("fine");
        assert_eq!(
            (c.knobs().data.as_path(), c.listen().port()),
            (Path::new("here"), 0)
        );
        assert_eq!(c.knobs().limits.session_ttl, std::time::Duration::from_secs(2));
        assert!(c.knobs().execution.enabled);
    }

    #[test]
    fn the_file_is_read_and_an_unknown_key_in_it_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("server.toml");
        std::fs::write(&path, "port = 81\n[rates]\ncommits_per_second = 7\n").expect("written");
        let arguments = parsed(&["--config", path.to_str().expect("text")]);
        let read = || Configuration::from_environment(&arguments, false, |_| None);
        let c = read().expect("fine");
        assert_eq!(c.listen().port(), 81);
        assert_eq!(c.knobs().rates.commits.per_second.map(|n| n.get()), Some(7));
        std::fs::write(&path, "[limits]\nmax_wathces = 1\n").expect("written");
        let error = read().expect_err("a typo").to_string();
        assert!(
            error.contains("limits.max_wathces") && error.contains("server.toml"),
            "{error}"
        );
    }

    #[test]
    fn ss_13_the_environments_zero_is_unbounded() {
        use crate::settings::OutstandingEffects;
        let zero = with(&[("SERVER_EXECUTION_MAX_OUTSTANDING_EFFECTS", "0")]).expect("fine");
        assert_eq!(zero.settings.outstanding_effects, OutstandingEffects::Unbounded);
        let bad = with(&[("SERVER_EXECUTION_MAX_OUTSTANDING_EFFECTS", "-1")]).expect("ignored");
        assert_eq!(bad.settings.outstanding_effects, OutstandingEffects::AtMost(16));
    }

    #[test]
    fn ss_12_a_bad_value_of_the_loop_means_the_default() {
        for bad in ["12abc", "-5", "0", "1e3", "99999999999"] {
            let lookup = |name: &str| (name == "SERVER_EXECUTION_FLUSH_DEADLINE_MS").then(|| bad.to_owned());
            let c =
                Configuration::from_environment(&ServeArguments::default(), false, lookup).expect("ignored");
            assert_eq!(c.settings, LoopSettings::default(), "{bad}");
        }
    }
}
