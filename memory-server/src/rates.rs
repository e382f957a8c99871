//! Rate limits per principal (commits, opens, queries): token buckets that first pace a connection and, when the wait
//! would be too long, refuse with a named error that says when to come back. Asked by `dispatch`, `transact` and
//! `session_open`; loopback connections are the process itself and are never asked.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use memory_wire::Did;
use memory_wire::WireError;
use memory_wire::error::ErrorName;
use serde::Serialize;

use crate::tasks::sleep;

/// One bucket of each principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that come back each second; `None` is no limit.
    pub per_second: Option<NonZeroU32>,
    /// Tokens of a full bucket.
    pub burst: NonZeroU32,
}

impl Rate {
    /// No limit.
    pub const UNBOUNDED: Rate = Rate {
        per_second: None,
        burst: NonZeroU32::MIN,
    };

    /// `per_second` tokens a second (0 = no limit), at most `burst` saved.
    pub const fn new(per_second: u32, burst: u32) -> Rate {
        Rate {
            per_second: NonZeroU32::new(per_second),
            burst: match NonZeroU32::new(burst) {
                Some(burst) => burst,
                None => NonZeroU32::MIN,
            },
        }
    }
}

/// What one principal may ask of the server, over all its connections and spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// `transact` requests.
    pub commits: Rate,
    /// `session.open` requests whose signature held.
    pub opens: Rate,
    /// `graph.query`, `entity-id.*`, `sqlite.*` and `session.watch.*` requests.
    pub queries: Rate,
    /// Longest time a request waits for its token before it is refused.
    pub patience: Duration,
}

impl Rates {
    /// No limits: the default of an embedded server.
    pub const UNBOUNDED: Rates = Rates {
        commits: Rate::UNBOUNDED,
        opens: Rate::UNBOUNDED,
        queries: Rate::UNBOUNDED,
        patience: Duration::ZERO,
    };

    /// What a configured server starts with: far above what a person does, far below what fills a disk in an hour.
    pub const CONFIGURED: Rates = Rates {
        commits: Rate::new(1_000, 5_000),
        opens: Rate::new(100, 1_000),
        queries: Rate::new(1_000, 5_000),
        patience: Duration::from_secs(5),
    };
}

/// What is counted against a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metered {
    Commit,
    Open,
    Query,
}

impl Metered {
    fn noun(self) -> &'static str {
        match self {
            Metered::Commit => "commit",
            Metered::Open => "session open",
            Metered::Query => "query",
        }
    }
}

/// Requests that met a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateStats {
    /// Commits refused.
    pub commits_refused: u64,
    /// Session opens refused.
    pub opens_refused: u64,
    /// Queries refused.
    pub queries_refused: u64,
    /// Requests that waited for a token and then went on.
    pub paced: u64,
}

/// A refusal: the bucket is empty for longer than a request may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooFast {
    what: Metered,
    retry_after: Duration,
}

impl TooFast {
    /// The refusal as the client is told: an unclassified, possibly transient error (WIRE-766), which it retries.
    pub(crate) fn into_wire(self) -> WireError {
        WireError::new(
            ErrorName::RateLimited,
            format!(
                "{} rate of this principal exceeded; retry after {} ms",
                self.what.noun(),
                self.retry_after.as_millis().max(1)
            ),
        )
        .with_retry_after_ms(
            u64::try_from(self.retry_after.as_millis())
                .unwrap_or(u64::MAX)
                .max(1),
        )
    }
}

/// One kind of bucket, by principal.
#[derive(Debug)]
struct Buckets {
    limiter: Option<DefaultKeyedRateLimiter<Option<Did>>>,
    refused: AtomicU64,
}

impl Buckets {
    fn new(rate: Rate) -> Buckets {
        Buckets {
            limiter: rate
                .per_second
                .map(|per_second| RateLimiter::keyed(Quota::per_second(per_second).allow_burst(rate.burst))),
            refused: AtomicU64::new(0),
        }
    }

    /// Takes a token, or tells how long until there is one.
    fn take(&self, principal: &Option<Did>) -> Result<(), Duration> {
        let Some(limiter) = &self.limiter else {
            return Ok(());
        };
        limiter
            .check_key(principal)
            .map_err(|not_until| not_until.wait_time_from(DefaultClock::default().now()))
    }
}

/// The buckets of a server.
#[derive(Debug)]
pub(crate) struct RateLimits {
    commits: Buckets,
    opens: Buckets,
    queries: Buckets,
    patience: Duration,
    paced: AtomicU64,
}

impl RateLimits {
    pub(crate) fn new(rates: &Rates) -> RateLimits {
        RateLimits {
            commits: Buckets::new(rates.commits),
            opens: Buckets::new(rates.opens),
            queries: Buckets::new(rates.queries),
            patience: rates.patience,
            paced: AtomicU64::new(0),
        }
    }

    fn buckets(&self, what: Metered) -> &Buckets {
        match what {
            Metered::Commit => &self.commits,
            Metered::Open => &self.opens,
            Metered::Query => &self.queries,
        }
    }

    /// Waits for a token. The connection's frames wait with it, so that a client which is merely quick is slowed by its
    /// own socket and never sees an error.
    pub(crate) async fn pace(&self, what: Metered, principal: Option<&Did>) -> Result<(), TooFast> {
        let buckets = self.buckets(what);
        if buckets.limiter.is_none() {
            return Ok(());
        }
        let principal = principal.cloned();
        let mut left = self.patience;
        let mut waited = false;
        loop {
            match buckets.take(&principal) {
                Ok(()) => {
                    if waited {
                        self.paced.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(());
                }
                Err(wait) if wait <= left => {
                    waited = true;
                    left -= wait;
                    sleep(wait).await;
                }
                Err(retry_after) => {
                    buckets.refused.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(?what, ?principal, ?retry_after, "rate limit");
                    return Err(TooFast { what, retry_after });
                }
            }
        }
    }

    /// Forgets principals whose buckets are full again (SRV-4).
    pub(crate) fn sweep(&self) {
        for buckets in [&self.commits, &self.opens, &self.queries] {
            if let Some(limiter) = &buckets.limiter {
                limiter.retain_recent();
                limiter.shrink_to_fit();
            }
        }
    }

    pub(crate) fn stats(&self) -> RateStats {
        let refused = |buckets: &Buckets| buckets.refused.load(Ordering::Relaxed);
        RateStats {
            commits_refused: refused(&self.commits),
            opens_refused: refused(&self.opens),
            queries_refused: refused(&self.queries),
            paced: self.paced.load(Ordering::Relaxed),
        }
    }
}
