//! Scenario, model and vector tests over the whole system.
