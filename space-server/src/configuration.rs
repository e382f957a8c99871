//! What the operator says: command line and environment, read once at start (SRV §14, SS-10). A value that cannot
//! mean anything refuses to start with its name; a bad value of a loop setting means the default (SS-12).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use memory_engine::Durability;
use memory_server::AclMode;
use memory_wire::Did;
use thiserror::Error;

use crate::settings::{LoopSettings, server_execution};

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

/// Where data lies and where to listen.
#[derive(Args, Clone, Debug)]
pub struct ServeArguments {
    /// Data directory: the space stores and this node's key. Overrides MEMORY_DIR.
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Address to listen on. Overrides HOST and PORT; port 0 takes a free one.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
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
    /// Data directory.
    pub data: PathBuf,
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Who the process is.
    pub identity: IdentitySource,
    /// How access decisions are applied.
    pub acl_mode: AclMode,
    /// Principals with OWNER everywhere.
    pub service_principals: BTreeSet<Did>,
    /// What an acknowledged commit survives.
    pub durability: Durability,
    /// Whether handlers and derivations run here.
    pub server_execution: bool,
    /// The serving loop's knobs.
    pub settings: LoopSettings,
    /// Revision of the program, for health and meta.
    pub git_sha: Option<String>,
    /// Whether the dump routes exist.
    pub dumps: bool,
    /// A development, test or staging environment, as opposed to production.
    pub development: bool,
}

/// A configuration that cannot be started with.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigurationError {
    /// A variable holds something it cannot mean.
    #[error("{name} is {found:?}, expected {expected}")]
    Variable {
        /// Which.
        name: &'static str,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: &'static str,
    },
}

impl Configuration {
    /// Combines the command line with the environment. `server_execution_default` is what the switch means when
    /// unset: off for `serve` (SS-10), on for the demo, which is nothing without it.
    pub fn from_environment(
        arguments: &ServeArguments,
        server_execution_default: bool,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Configuration, ConfigurationError> {
        let set = |name: &str| lookup(name).filter(|text| !text.trim().is_empty());
        let environment = set("ENV").unwrap_or_else(|| "development".into());
        let development = matches!(environment.as_str(), "development" | "test" | "staging");
        let data = arguments
            .data
            .clone()
            .or_else(|| set("DB_PATH").or_else(|| set("MEMORY_DIR")).map(PathBuf::from))
            .unwrap_or_else(|| PathBuf::from("./cache/memory/"));
        Ok(Configuration {
            data,
            listen: match arguments.listen {
                Some(address) => address,
                None => listen_address(&set)?,
            },
            identity: match (set("IDENTITY"), set("IDENTITY_PASSPHRASE")) {
                (Some(path), _) => IdentitySource::File(path.into()),
                (None, Some(passphrase)) => IdentitySource::Passphrase(passphrase),
                (None, None) => IdentitySource::DataDirectory,
            },
            acl_mode: parse(&set, "MEMORY_ACL_MODE", "off, observe or enforce", |text| {
                text.parse().ok()
            })?
            .unwrap_or(AclMode::Enforce),
            service_principals: set("MEMORY_SERVICE_DIDS")
                .map(|list| {
                    list.split(',')
                        .map(str::trim)
                        .filter(|did| !did.is_empty())
                        .map(Did::from)
                        .collect()
                })
                .unwrap_or_default(),
            durability: parse(&set, "MEMORY_DURABILITY", "full or normal", |text| match text {
                "full" => Some(Durability::Full),
                "normal" => Some(Durability::Normal),
                _ => None,
            })?
            .unwrap_or_default(),
            server_execution: server_execution(
                lookup("EXPERIMENTAL_SERVER_EXECUTION").as_deref(),
                server_execution_default,
            ),
            settings: LoopSettings::from_environment(&lookup),
            git_sha: set("TOOLSHED_GIT_SHA").or_else(|| set("COMMIT_SHA")),
            dumps: development
                && set("MEMORY_DUMP_ENABLED").is_some_and(|text| text == "true" || text == "1"),
            development,
        })
    }
}

fn listen_address(set: &impl Fn(&str) -> Option<String>) -> Result<SocketAddr, ConfigurationError> {
    let host = parse(set, "HOST", "an IP address", |text| text.parse().ok())?
        .unwrap_or(std::net::IpAddr::from([0, 0, 0, 0]));
    let port = parse(set, "PORT", "a port number", |text| text.parse().ok())?.unwrap_or(8000);
    Ok(SocketAddr::new(host, port))
}

fn parse<T>(
    set: &impl Fn(&str) -> Option<String>,
    name: &'static str,
    expected: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, ConfigurationError> {
    match set(name) {
        None => Ok(None),
        Some(text) => match read(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(ConfigurationError::Variable {
                name,
                found: text,
                expected,
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: ServeArguments = ServeArguments {
        data: None,
        listen: None,
    };

    fn with(pairs: &'static [(&'static str, &'static str)]) -> Result<Configuration, ConfigurationError> {
        Configuration::from_environment(&BARE, false, |name| {
            pairs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn defaults_are_those_of_the_page() {
        let c = with(&[]).unwrap();
        assert_eq!(c.listen.to_string(), "0.0.0.0:8000");
        assert_eq!(
            (c.acl_mode, c.durability, c.server_execution),
            (AclMode::Enforce, Durability::Full, false)
        );
        assert_eq!(c.identity, IdentitySource::DataDirectory);
    }

    #[test]
    fn srv_803_an_unknown_mode_refuses_to_start_by_name() {
        let error = with(&[("MEMORY_ACL_MODE", "on")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "MEMORY_ACL_MODE is \"on\", expected off, observe or enforce"
        );
        assert!(
            with(&[("PORT", "eighty")])
                .unwrap_err()
                .to_string()
                .contains("PORT")
        );
    }

    #[test]
    fn dumps_never_exist_in_production() {
        assert!(with(&[("MEMORY_DUMP_ENABLED", "true")]).unwrap().dumps);
        assert!(
            !with(&[("MEMORY_DUMP_ENABLED", "true"), ("ENV", "production")])
                .unwrap()
                .dumps
        );
    }

    #[test]
    fn the_command_line_wins() {
        let arguments = ServeArguments {
            data: Some("here".into()),
            listen: "127.0.0.1:0".parse().ok(),
        };
        let lookup = |name: &str| (name == "PORT" || name == "MEMORY_DIR").then(|| "9".to_owned());
        let c = Configuration::from_environment(&arguments, true, lookup).unwrap();
        assert_eq!((c.data, c.listen.port()), (PathBuf::from("here"), 0));
        assert!(c.server_execution);
    }
}
