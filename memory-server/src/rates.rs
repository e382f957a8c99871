//! Rate limits: of a principal (commits, opens, queries), and of an address for what nobody signs (uploads). Token buckets
//! that first pace a connection and, when the wait would be too long, refuse with a named error that says when to come
//! back. Asked by `dispatch`, `transact`, `session_open` and `http::blobs`; loopback connections are the process itself and
//! are never asked.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use governor::clock::Clock as _;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use memory_wire::Did;
use memory_wire::WireError;
use memory_wire::error::ErrorName;
use serde::Serialize;

use crate::statistics::Statistics;
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

/// What one principal may ask of the server, over all its connections and spaces, and one address of what nobody signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// `transact` requests.
    pub commits: Rate,
    /// `session.open` requests whose signature held.
    pub opens: Rate,
    /// `graph.query`, `entity-id.*`, `sqlite.*` and `session.watch.*` requests.
    pub queries: Rate,
    /// Blob uploads of one address.
    pub uploads: Rate,
    /// Longest time a request waits for its token before it is refused.
    pub patience: Duration,
}

impl Rates {
    /// No limits: the default of an embedded server.
    pub const UNBOUNDED: Rates = Rates {
        commits: Rate::UNBOUNDED,
        opens: Rate::UNBOUNDED,
        queries: Rate::UNBOUNDED,
        uploads: Rate::UNBOUNDED,
        patience: Duration::ZERO,
    };

    /// What a configured server starts with: far above what a person does, far below what fills a disk in an hour.
    pub const CONFIGURED: Rates = Rates {
        commits: Rate::new(1_000, 5_000),
        opens: Rate::new(100, 1_000),
        queries: Rate::new(1_000, 5_000),
        uploads: Rate::new(100, 1_000),
        patience: Duration::from_secs(5),
    };
}

/// What is counted against a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metered {
    Commit,
    Open,
    Query,
    Upload,
}

impl Metered {
    pub(crate) const ALL: &'static [Metered] =
        &[Metered::Commit, Metered::Open, Metered::Query, Metered::Upload];

    /// As metrics count it.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Metered::Commit => "commit",
            Metered::Open => "open",
            Metered::Query => "query",
            Metered::Upload => "upload",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Metered::Commit => "commit",
            Metered::Open => "session open",
            Metered::Query => "query",
            Metered::Upload => "upload",
        }
    }
}

/// Whose bucket a request is charged to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Payer {
    /// Who opened the session.
    Principal(Option<Did>),
    /// Who sent what nobody has signed, as far as the host tells.
    Address(Option<IpAddr>),
}

impl Payer {
    /// A peer's address. Of version 6 the network alone counts: whoever has one address has all of it.
    pub(crate) fn address(peer: Option<IpAddr>) -> Payer {
        const NETWORK: u128 = !0 << 64;
        Payer::Address(peer.map(|peer| match peer.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
        }))
    }
}

/// What became of a request above its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateOutcome {
    /// It waited and went on.
    Paced,
    Refused,
}

impl RateOutcome {
    pub(crate) fn label(self) -> &'static str {
        match self {
            RateOutcome::Paced => "paced",
            RateOutcome::Refused => "refused",
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
    /// Uploads refused.
    pub uploads_refused: u64,
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
    /// The refusal as the client is told: with a name of its own, which clients that do not know it retry (WIRE-766).
    pub(crate) fn to_wire(self) -> WireError {
        self.marked(WireError::new(ErrorName::RateLimited, self.message()))
    }

    /// The refusal of an open, whose challenge is spent: the client comes back on a fresh connection (SRV-324).
    pub(crate) fn to_open_error(self) -> WireError {
        self.marked(WireError::authorization(self.message()).retriable())
    }

    /// The refusal of an HTTP request: status, seconds to wait, text.
    pub(crate) fn to_http(self) -> (StatusCode, [(HeaderName, HeaderValue); 1], &'static str) {
        let seconds = self.retry_after_ms().div_ceil(1000);
        (
            StatusCode::TOO_MANY_REQUESTS,
            [(header::RETRY_AFTER, HeaderValue::from(seconds))],
            "Too many uploads from this address",
        )
    }

    fn message(self) -> String {
        format!(
            "{} rate of this principal exceeded; retry after {} ms",
            self.what.noun(),
            self.retry_after_ms()
        )
    }

    fn marked(self, error: WireError) -> WireError {
        error.with_retry_after_ms(self.retry_after_ms())
    }

    fn retry_after_ms(self) -> u64 {
        u64::try_from(self.retry_after.as_millis())
            .unwrap_or(u64::MAX)
            .max(1)
    }
}

/// One kind of bucket, by who is charged; `None` where there is no limit.
type Buckets = Option<DefaultKeyedRateLimiter<Payer>>;

fn buckets(rate: Rate) -> Buckets {
    rate.per_second
        .map(|per_second| RateLimiter::keyed(Quota::per_second(per_second).allow_burst(rate.burst)))
}

/// The buckets of a server.
#[derive(Debug)]
pub(crate) struct RateLimits {
    commits: Buckets,
    opens: Buckets,
    queries: Buckets,
    uploads: Buckets,
    patience: Duration,
}

impl RateLimits {
    pub(crate) fn new(rates: &Rates) -> RateLimits {
        RateLimits {
            commits: buckets(rates.commits),
            opens: buckets(rates.opens),
            queries: buckets(rates.queries),
            uploads: buckets(rates.uploads),
            patience: rates.patience,
        }
    }

    fn buckets(&self, what: Metered) -> Option<&DefaultKeyedRateLimiter<Payer>> {
        match what {
            Metered::Commit => self.commits.as_ref(),
            Metered::Open => self.opens.as_ref(),
            Metered::Query => self.queries.as_ref(),
            Metered::Upload => self.uploads.as_ref(),
        }
    }

    /// Waits for a token. The connection's frames wait with it, so that a client which is merely quick is slowed by its
    /// own socket and never sees an error. `waits` is told beforehand.
    pub(crate) async fn pace(
        &self,
        what: Metered,
        payer: &Payer,
        statistics: &Statistics,
        waits: impl Fn(),
    ) -> Result<(), TooFast> {
        let Some(buckets) = self.buckets(what) else {
            return Ok(());
        };
        let mut left = self.patience;
        loop {
            let Err(not_until) = buckets.check_key(payer) else {
                if left < self.patience {
                    statistics.count_rate(what, RateOutcome::Paced);
                }
                return Ok(());
            };
            let wait = not_until.wait_time_from(buckets.clock().now());
            if wait > left {
                statistics.count_rate(what, RateOutcome::Refused);
                tracing::debug!(?what, ?payer, ?wait, "rate limit");
                return Err(TooFast {
                    what,
                    retry_after: wait,
                });
            }
            left -= wait.max(Duration::from_millis(1)).min(left);
            waits();
            sleep(wait).await;
        }
    }

    /// Forgets whose buckets are full again (SRV-4).
    pub(crate) fn sweep(&self) {
        for limiter in Metered::ALL.iter().filter_map(|what| self.buckets(*what)) {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    fn scarce(burst: u32) -> Rate {
        Rate::new(1, burst)
    }

    #[tokio::test]
    async fn a_burst_passes_and_what_follows_is_refused_with_a_time() {
        let statistics = Statistics::new(&Limits::default());
        let limits = RateLimits::new(&Rates {
            commits: scarce(3),
            ..Rates::UNBOUNDED
        });
        let of = |did: &str| Payer::Principal(Some(Did::from(did)));
        let (alice, bob) = (of("did:key:zAlice"), of("did:key:zBob"));
        for _ in 0..3 {
            limits
                .pace(Metered::Commit, &alice, &statistics, || ())
                .await
                .expect("within the burst");
        }
        let refusal = limits
            .pace(Metered::Commit, &alice, &statistics, || ())
            .await
            .expect_err("the bucket is empty and nothing may wait");
        let wire = refusal.to_wire();
        assert_eq!(wire.name, ErrorName::RateLimited);
        assert!(
            wire.retry_after_ms.is_some_and(|ms| (1..=1_000).contains(&ms)),
            "{wire:?}"
        );
        assert!(refusal.to_open_error().retriable);
        // Others, and other kinds, are none of it.
        limits
            .pace(Metered::Commit, &bob, &statistics, || ())
            .await
            .expect("bob's own bucket");
        limits
            .pace(Metered::Query, &alice, &statistics, || ())
            .await
            .expect("no limit");
        assert_eq!(
            statistics.rates(),
            RateStats {
                commits_refused: 1,
                ..RateStats::default()
            }
        );
    }

    #[tokio::test]
    async fn who_may_wait_is_paced_not_refused() {
        let statistics = Statistics::new(&Limits::default());
        let limits = RateLimits::new(&Rates {
            queries: Rate::new(1_000, 1),
            patience: Duration::from_secs(600),
            ..Rates::UNBOUNDED
        });
        for _ in 0..5 {
            limits
                .pace(Metered::Query, &Payer::Principal(None), &statistics, || ())
                .await
                .expect("it waits");
        }
        let rates = statistics.rates();
        assert!(rates.paced >= 1 && rates.queries_refused == 0, "{rates:?}");
    }

    #[test]
    fn an_address_is_charged_for_its_network() {
        let payer = |address: &str| Payer::address(Some(address.parse().expect("an address")));
        assert_eq!(payer("2001:db8::1"), payer("2001:db8::ffff:2"));
        assert_ne!(payer("2001:db8::1"), payer("2001:db8:0:1::1"));
        assert_eq!(payer("::ffff:192.0.2.1"), payer("192.0.2.1"));
        assert_ne!(payer("192.0.2.1"), payer("192.0.2.2"));
    }
}
