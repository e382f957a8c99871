//! The newest requests that took long (SRV-1102). Part of [`crate::statistics`].

use std::collections::VecDeque;

use memory_engine::sync::Mutex;
use serde::Serialize;

use crate::limits::Limits;

/// Read operations that enter the slow-query ring (SRV-1102).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SlowOperation {
    /// A one-off query.
    #[serde(rename = "graph.query")]
    GraphQuery,
    /// A replaced watch list.
    #[serde(rename = "session.watch.set")]
    WatchSet,
    /// Added watches.
    #[serde(rename = "session.watch.add")]
    WatchAdd,
    /// A session's evaluation in a push pass.
    #[serde(rename = "session.watch.refresh")]
    WatchRefresh,
}

/// One slow request.
#[derive(Debug, Clone, Serialize)]
pub struct SlowQuery {
    /// Wall clock, milliseconds.
    pub timestamp: i64,
    /// Milliseconds it took.
    pub elapsed: f64,
    /// What it was.
    pub operation: SlowOperation,
    /// Where.
    pub space: String,
    /// Roots of a query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roots: Option<usize>,
    /// Watches of a watch request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watches: Option<usize>,
}

/// The ring.
#[derive(Debug)]
pub(super) struct SlowQueries {
    ring: Mutex<VecDeque<SlowQuery>>,
    threshold_ms: f64,
    most: usize,
}

impl SlowQueries {
    pub(super) fn new(limits: &Limits) -> SlowQueries {
        SlowQueries {
            ring: Mutex::default(),
            threshold_ms: limits.slow_query_threshold.as_secs_f64() * 1000.0,
            most: limits.slow_query_ring,
        }
    }

    /// Keeps a request, if it was slow.
    pub(super) fn note(&self, query: SlowQuery) {
        if query.elapsed <= self.threshold_ms {
            return;
        }
        let mut ring = self.ring.lock();
        ring.push_back(query);
        if ring.len() > self.most {
            ring.pop_front();
        }
    }

    /// Those kept, oldest first.
    pub(super) fn kept(&self) -> Vec<SlowQuery> {
        self.ring.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elapsed times of what a ring of `most` entries keeps of five queries.
    fn kept_of_five(most: usize) -> Vec<f64> {
        let limits = Limits {
            slow_query_ring: most,
            ..Limits::default()
        };
        let slow = SlowQueries::new(&limits);
        for elapsed in [100.0, 101.0, 102.0, 103.0, 104.0] {
            slow.note(SlowQuery {
                timestamp: 0,
                elapsed,
                operation: SlowOperation::GraphQuery,
                space: "did:key:z".into(),
                roots: Some(1),
                watches: None,
            });
        }
        slow.kept().iter().map(|query| query.elapsed).collect()
    }

    #[test]
    fn srv_1102_the_ring_keeps_the_newest_slow_queries() {
        assert_eq!(kept_of_five(2), [103.0, 104.0]);
        assert_eq!(
            kept_of_five(100),
            [101.0, 102.0, 103.0, 104.0],
            "100 ms is not slow"
        );
        assert_eq!(kept_of_five(0), [] as [f64; 0], "a ring of nothing stays empty");
    }
}
