//! One Chromium with its own profile, driven through its own chromedriver, and the page's test attributes in it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

/// Longest wait for something the page must show; it only bounds a broken run.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the page is looked at while waiting.
const LOOK: Duration = Duration::from_millis(25);

/// A page of one person.
pub(crate) struct Page {
    who: &'static str,
    client: Client,
    driver: Child,
    _profile: tempfile::TempDir,
}

impl Drop for Page {
    fn drop(&mut self) {
        // The driver ends its browser with it.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Page {
    /// Opens `url` in a fresh browser.
    pub(crate) async fn open(who: &'static str, url: &str) -> Page {
        let (driver, port) = start_driver().await;
        let profile = tempfile::tempdir().expect("a profile directory");
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".into(),
            "--disable-gpu".into(),
            "--disable-quic".into(),
            "--disable-dev-shm-usage".into(),
            "--no-first-run".into(),
            "--disable-background-networking".into(),
            "--disable-component-update".into(),
            "--disable-sync".into(),
            "--window-size=1100,1000".into(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        let binary = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".into());
        let capabilities = json!({ "goog:chromeOptions": { "args": arguments, "binary": binary } });
        let client = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
            .capabilities(capabilities.as_object().expect("an object").clone())
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .unwrap_or_else(|e| panic!("{who}: no browser session: {e}"));
        client
            .goto(url)
            .await
            .unwrap_or_else(|e| panic!("{who}: {url}: {e}"));
        Page {
            who,
            client,
            driver,
            _profile: profile,
        }
    }

    pub(crate) async fn close(&self) {
        self.client.clone().close().await.expect("closing the browser");
    }

    pub(crate) async fn reload(&self) {
        self.client.refresh().await.expect("reload");
    }

    pub(crate) async fn html(&self) -> String {
        self.client.source().await.expect("page source")
    }

    /// Waits until `look` (a JavaScript expression) is true.
    async fn until(&self, what: &str, look: &str) {
        let script = format!("return Boolean({look});");
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                if self.script(&script).await == json!(true) {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        if waited.await.is_err() {
            let text = self.script("return document.body.innerText;").await;
            panic!("{}: never saw that {what}. The page says: {text}", self.who);
        }
    }

    async fn script(&self, script: &str) -> serde_json::Value {
        self.client
            .execute(script, vec![])
            .await
            .unwrap_or_else(|e| panic!("{}: {script}: {e}", self.who))
    }

    async fn one(&self, test_id: &str) -> fantoccini::elements::Element {
        let css = format!("[data-testid=\"{test_id}\"]");
        self.client
            .find(Locator::Css(&css))
            .await
            .unwrap_or_else(|e| panic!("{}: {test_id}: {e}", self.who))
    }

    pub(crate) async fn attribute(&self, test_id: &str, name: &str) -> String {
        self.one(test_id)
            .await
            .attr(name)
            .await
            .expect("attribute")
            .unwrap_or_default()
    }

    pub(crate) async fn attributes(&self, test_id: &str, name: &str) -> Vec<String> {
        let script = format!(
            "return [...document.querySelectorAll('[data-testid=\"{test_id}\"]')].map((e) => e.getAttribute('{name}') ?? '');"
        );
        serde_json::from_value(self.script(&script).await).expect("strings")
    }

    pub(crate) async fn number(&self, test_id: &str) -> u64 {
        let text = self.one(test_id).await.text().await.expect("text");
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{}: {test_id} shows {text:?}", self.who))
    }

    pub(crate) async fn value(&self, test_id: &str) -> String {
        self.one(test_id)
            .await
            .prop("value")
            .await
            .expect("value")
            .unwrap_or_default()
    }

    pub(crate) async fn click(&self, test_id: &str) {
        self.one(test_id)
            .await
            .click()
            .await
            .unwrap_or_else(|e| panic!("{}: click on {test_id}: {e}", self.who));
    }

    pub(crate) async fn type_into(&self, test_id: &str, text: &str) {
        self.one(test_id).await.send_keys(text).await.expect("typing");
    }

    pub(crate) async fn phase_is(&self, phase: &str) {
        self.until(
            &format!("the connection is {phase}"),
            &format!("document.querySelector('[data-testid=\"connection\"]')?.dataset.phase === '{phase}'"),
        )
        .await;
    }

    pub(crate) async fn is_live(&self) {
        self.phase_is("live").await;
    }

    /// Everything this page did is over: nothing open, and the server's watermark has passed it.
    pub(crate) async fn settled(&self) {
        self.until(
            "its events are settled",
            "document.querySelector('[data-testid=\"panel-settled\"]')?.dataset.open === '0' && \
             document.querySelector('[data-testid=\"panel-settled\"]')?.textContent.trim() !== 'waiting'",
        )
        .await;
    }

    pub(crate) async fn has_option(&self, title: &str) {
        self.until(&format!("{title} is an option"), &option(title, "option"))
            .await;
    }

    pub(crate) async fn vote(&self, title: &str) {
        self.has_option(title).await;
        let button = format!("[data-testid=\"option\"][data-option=\"{title}\"]");
        self.client
            .find(Locator::Css(&button))
            .await
            .expect("the option")
            .click()
            .await
            .expect("a click");
    }

    pub(crate) async fn tally_is(&self, title: &str, votes: &str) {
        self.until(
            &format!("{title} has {votes} votes"),
            &format!("{}?.dataset.votes === '{votes}'", option(title, "tally")),
        )
        .await;
    }

    pub(crate) async fn my_vote_is(&self, title: &str) {
        self.until(
            &format!("my vote is {title}"),
            &format!("{}?.hidden === false", option(title, "my-vote")),
        )
        .await;
    }

    pub(crate) async fn draft_is(&self, text: &str) {
        self.until(
            &format!("the draft is {text:?}"),
            &format!("document.querySelector('[data-testid=\"draft\"]')?.value === '{text}'"),
        )
        .await;
    }

    /// Saves what the window shows, if somebody asked for pictures.
    pub(crate) async fn picture(&self, name: &str) {
        let Ok(directory) = std::env::var("SCREENSHOTS") else {
            return;
        };
        let picture = self.client.screenshot().await.expect("a picture");
        std::fs::write(PathBuf::from(directory).join(name), picture).expect("writing the picture");
    }
}

fn option(title: &str, test_id: &str) -> String {
    format!("document.querySelector('[data-testid=\"{test_id}\"][data-option=\"{title}\"]')")
}

/// A chromedriver on a free port. It prints the port it took.
async fn start_driver() -> (Child, u16) {
    let binary = std::env::var("CHROMEDRIVER").unwrap_or_else(|_| "/usr/bin/chromedriver".into());
    let mut driver = Command::new(&binary)
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| {
            panic!("{binary}: {e}; `cargo xtask test` installs chromium and chromium-driver")
        });
    let stdout =
        tokio::process::ChildStdout::from_std(driver.stdout.take().expect("stdout")).expect("async stdout");
    let mut lines = BufReader::new(stdout).lines();
    let started = tokio::time::timeout(PATIENCE, async {
        while let Some(line) = lines.next_line().await.expect("driver output") {
            let port = line.split("started successfully on port ").nth(1);
            if let Some(port) = port.and_then(|rest| rest.trim_end_matches('.').trim().parse().ok()) {
                return port;
            }
        }
        panic!("chromedriver ended before it was ready");
    });
    (driver, started.await.expect("chromedriver starts"))
}
