//! The real `space-server` binary as a child process: free port, own data directory, stopped by its own process
//! id. A server dropped by a test is killed; one asked to stop must end by itself.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// A running server.
#[derive(Debug)]
pub struct SpaceServer {
    child: Child,
    address: String,
    /// Log lines after the ready line, drained by a thread so that the child never blocks on a full pipe.
    _drain: std::thread::JoinHandle<()>,
}

/// How a test starts a server.
#[derive(Clone, Debug)]
pub struct Launch {
    verb: &'static str,
    data: PathBuf,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
}

impl Launch {
    /// `space-server serve` on `data`.
    pub fn serve(data: &Path) -> Launch {
        Launch {
            verb: "serve",
            data: data.to_owned(),
            environment: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// `space-server demo` on `data`.
    pub fn demo(data: &Path) -> Launch {
        Launch {
            verb: "demo",
            ..Launch::serve(data)
        }
    }

    /// Sets an environment variable of the child.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Launch {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a command line argument.
    #[must_use]
    pub fn arg(mut self, argument: &str) -> Launch {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Starts the server and waits for its ready line.
    pub fn start(&self) -> Result<SpaceServer> {
        let mut child = Command::new(binary()?)
            .arg(self.verb)
            .arg("--data")
            .arg(&self.data)
            .args(["--listen", "127.0.0.1:0"])
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(k, v)| (k.as_str(), v.as_str())))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("starting space-server")?;
        let mut lines = BufReader::new(child.stdout.take().context("the child's stdout")?).lines();
        let address = loop {
            match lines.next() {
                Some(Ok(line)) => {
                    if let Some(url) = line
                        .split_whitespace()
                        .find_map(|word| word.strip_prefix("http://"))
                    {
                        break url.trim_end_matches('/').to_owned();
                    }
                }
                Some(Err(error)) => return Err(error).context("reading the ready line"),
                None => bail!("space-server ended before it was ready: {:?}", child.wait()),
            }
        };
        let drain = std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(SpaceServer {
            child,
            address,
            _drain: drain,
        })
    }
}

impl SpaceServer {
    /// `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// URL of the protocol's WebSocket.
    pub fn socket_url(&self) -> String {
        format!("ws://{}/api/storage/memory", self.address)
    }

    /// URL of an HTTP route.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The body of an HTTP route.
    pub fn get(&self, path: &str) -> Result<String> {
        Ok(ureq::get(&self.url(path))
            .call()
            .with_context(|| format!("GET {path}"))?
            .body_mut()
            .read_to_string()?)
    }

    /// A JSON route, parsed.
    pub fn get_json(&self, path: &str) -> Result<serde_json::Value> {
        serde_json::from_str(&self.get(path)?).with_context(|| format!("JSON of {path}"))
    }

    /// The `servingLoop` block of the statistics.
    pub fn serving_loop(&self) -> Result<serde_json::Value> {
        Ok(self.get_json("/api/health/stats")?["servingLoop"].clone())
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill −9, and waits until the process is gone.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill")?;
        self.child.wait().context("wait")?;
        Ok(())
    }

    /// Asks it to stop with a signal (`TERM`, `INT`) and waits; the exit must be clean.
    pub fn stop(mut self, signal: &str) -> Result<()> {
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &self.pid().to_string()])
            .status()?;
        anyhow::ensure!(sent.success(), "kill -{signal} failed");
        let status = self.child.wait().context("wait")?;
        anyhow::ensure!(status.success(), "space-server ended with {status} on {signal}");
        Ok(())
    }
}

impl Drop for SpaceServer {
    fn drop(&mut self) {
        // Already reaped children answer with an error, which is what we want to know nothing about.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program under test: the one that `SPACE_SERVER` names (`cargo xtask` builds it together with the tests), or one
/// built now, once per test process and with the profile of the tests, so that a test never runs a stale server.
pub fn binary() -> Result<&'static Path> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY
        .get_or_init(|| match std::env::var_os("SPACE_SERVER") {
            Some(path) => Ok(PathBuf::from(path)),
            None => build().map_err(|error| format!("{error:#}")),
        })
        .as_deref()
        .map_err(|error| anyhow::anyhow!("building space-server: {error}"))
}

fn build() -> Result<PathBuf> {
    // target/<profile>/deps/<test>: the profile's directory is two up.
    let test = std::env::current_exe()?;
    let profile_dir = test
        .ancestors()
        .skip(1)
        .find(|dir| {
            dir.file_name()
                .is_some_and(|name| name == "debug" || name == "release")
        })
        .context("the test binary is not below a cargo profile directory")?;
    let target_dir = profile_dir
        .parent()
        .context("the profile directory has no parent")?;
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "space-server",
        "--bin",
        "space-server",
        "--target-dir",
    ]);
    cargo.arg(target_dir).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile_dir.ends_with("release") {
        cargo.arg("--release");
    }
    anyhow::ensure!(cargo.status()?.success(), "cargo build failed");
    Ok(profile_dir.join("space-server"))
}
