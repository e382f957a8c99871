//! Memory of another process as the kernel counts it.

use anyhow::{Context, Result};

/// Resident memory of `pid`, KiB.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    field(pid, "VmRSS:")
}

/// Most resident memory of `pid` since its start or [`reset_peak`], KiB.
pub(crate) fn peak(pid: u32) -> Result<u64> {
    field(pid, "VmHWM:")
}

/// Begins a new peak at the present value.
pub(crate) fn reset_peak(pid: u32) -> Result<()> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").context("resetting the peak")
}

fn field(pid: u32, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .trim()
                .strip_suffix("kB")?
                .trim()
                .parse()
                .ok()
        })
        .with_context(|| format!("{name} of {pid}"))
}
