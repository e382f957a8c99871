//! The native patterns this program can run, as factories: a runtime is bound to its thread, so each loop makes its
//! own values.

use std::sync::Arc;

use runner::pattern::Pattern;
use runner::runtime::Runtime;

use crate::demo::lunch_poll::LunchPoll;

/// Makes one pattern.
type Factory = Arc<dyn Fn() -> Box<dyn Pattern> + Send + Sync>;

/// What runtimes are given at their start. Cloning shares the factories.
#[derive(Clone, Default)]
pub struct Patterns(Vec<Factory>);

impl Patterns {
    /// No patterns.
    pub fn new() -> Patterns {
        Patterns::default()
    }

    /// The patterns that come with the program.
    pub fn built_in() -> Patterns {
        Patterns::new().with(|| LunchPoll)
    }

    /// The same and one more.
    #[must_use]
    pub fn with<P: Pattern + 'static>(mut self, make: impl Fn() -> P + Send + Sync + 'static) -> Patterns {
        self.0.push(Arc::new(move || Box::new(make())));
        self
    }

    /// Makes every pattern known to a runtime.
    pub fn register(&self, runtime: &Runtime) {
        for make in &self.0 {
            runtime.register_pattern(make().as_ref());
        }
    }
}

impl std::fmt::Debug for Patterns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Patterns").field(&self.0.len()).finish()
    }
}
