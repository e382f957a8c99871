//! A whole life of a space by seed: sessions that come and go, read slowly, lose frames, take each other over and resume;
//! commits of every scope; access lists and leases that change. The clock moves when the seed says so and one thing happens
//! at a time, so a seed is always the same life. At every rest the world is held against the store; along the way every
//! frame is held against the promises of [`support::peer::Told`] and searched for what its session may not see.
//!
//! `cargo xtask long server-simulation`

#[path = "../support/mod.rs"]
mod support;

mod chance;
mod client;
mod content;
mod world;

use support::seeds;

/// Things that happen between two rests.
const STEPS: usize = 30;
/// Rests in a life.
const RESTS: usize = 3;

#[test]
fn nothing_foreign_is_told_and_nothing_is_lost_whatever_happens() {
    seeds::run("simulation", 40, |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut world = world::World::new(seed).await;
            for _ in 0..RESTS {
                for _ in 0..STEPS {
                    world.step().await;
                }
                world.rest().await;
            }
        });
    });
}
