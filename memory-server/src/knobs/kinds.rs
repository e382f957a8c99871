//! How values of knobs are read and written: the units of the table. Called by `table` and the resolver only.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use memory_engine::Durability;
use memory_wire::Did;

use crate::config::AclMode;

/// How values of one unit are read and written.
pub(super) struct Kind<T> {
    /// The unit as the table names it.
    pub(super) unit: &'static str,
    /// What a value may be, for errors.
    pub(super) expected: &'static str,
    pub(super) read: fn(&str) -> Option<T>,
    pub(super) show: fn(&T) -> String,
}

pub(super) const TEXT: Kind<String> = Kind {
    unit: "text",
    expected: "a text",
    read: |text| Some(text.to_owned()),
    show: String::clone,
};

pub(super) const OPTIONAL_TEXT: Kind<Option<String>> = Kind {
    unit: "text",
    expected: "a text",
    read: |text| Some(Some(text.to_owned())),
    show: |text| text.clone().unwrap_or_default(),
};

pub(super) const PATH: Kind<PathBuf> = Kind {
    unit: "path",
    expected: "a path",
    read: |text| Some(text.into()),
    show: |path| path.display().to_string(),
};

pub(super) const OPTIONAL_PATH: Kind<Option<PathBuf>> = Kind {
    unit: "path",
    expected: "a path",
    read: |text| Some(Some(text.into())),
    show: |path| {
        path.as_ref()
            .map_or_else(String::new, |path| path.display().to_string())
    },
};

pub(super) const ADDRESS: Kind<IpAddr> = Kind {
    unit: "IP address",
    expected: "an IP address",
    read: |text| text.parse().ok(),
    show: IpAddr::to_string,
};

pub(super) const PORT: Kind<u16> = Kind {
    unit: "port",
    expected: "a port number",
    read: |text| text.parse().ok(),
    show: u16::to_string,
};

pub(super) const SWITCH: Kind<bool> = Kind {
    unit: "switch",
    expected: "true or false",
    read: |text| match text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    },
    show: bool::to_string,
};

/// A switch of which only the two words are recognised (SS-10).
pub(super) const WORD_SWITCH: Kind<bool> = Kind {
    read: |text| text.parse().ok(),
    ..SWITCH
};

pub(super) const ACL_MODE: Kind<AclMode> = Kind {
    unit: "mode",
    expected: "off, observe or enforce",
    read: |text| text.parse().ok(),
    show: |mode| mode.as_str().to_owned(),
};

pub(super) const DURABILITY: Kind<Durability> = Kind {
    unit: "mode",
    expected: "full or normal",
    read: |text| match text {
        "full" => Some(Durability::Full),
        "normal" => Some(Durability::Normal),
        _ => None,
    },
    show: |durability| match durability {
        Durability::Full => "full".into(),
        Durability::Normal => "normal".into(),
    },
};

pub(super) const DIDS: Kind<BTreeSet<Did>> = Kind {
    unit: "comma list",
    expected: "DIDs with commas between them",
    read: |text| {
        Some(
            text.split(',')
                .map(str::trim)
                .filter(|did| !did.is_empty())
                .map(Did::from)
                .collect(),
        )
    },
    show: |dids| dids.iter().map(Did::as_str).collect::<Vec<_>>().join(","),
};

pub(super) const COUNT: Kind<usize> = Kind {
    unit: "count",
    expected: "a whole number",
    read: |text| digits(text).and_then(|n| usize::try_from(n).ok()),
    show: usize::to_string,
};

/// A count of at least one, within 32 bits: with none of it nothing works, and no more is ever meant.
pub(super) const SOME: Kind<usize> = Kind {
    expected: "a whole number from 1 to 4294967295",
    read: |text| (COUNT.read)(text).filter(|n| (1..=u32::MAX as usize).contains(n)),
    ..COUNT
};

/// A count of at least one.
pub(super) const BURST: Kind<NonZeroU32> = Kind {
    unit: "count",
    expected: "a whole number of at least 1",
    read: |text| {
        digits(text)
            .and_then(|n| u32::try_from(n).ok())
            .and_then(NonZeroU32::new)
    },
    show: NonZeroU32::to_string,
};

/// A rate; `0` and `off` are no limit.
pub(super) const PER_SECOND: Kind<Option<NonZeroU32>> = Kind {
    unit: "per second",
    expected: "a whole number, or off",
    read: |text| match text {
        "off" => Some(None),
        text => digits(text)
            .and_then(|n| u32::try_from(n).ok())
            .map(NonZeroU32::new),
    },
    show: |rate| rate.map_or_else(|| "off".into(), |rate| rate.to_string()),
};

/// A cap; `0` and `off` are none (SS-13).
pub(super) const CAP: Kind<Option<NonZeroU32>> = Kind {
    unit: "count",
    ..PER_SECOND
};

/// A rate whose `0` is a mistake, not a switch (SS-12).
pub(super) const EGRESS: Kind<Option<NonZeroU32>> = Kind {
    read: |text| match text {
        "off" => Some(None),
        text => (BURST.read)(text).map(Some),
    },
    ..PER_SECOND
};

/// Most bytes and milliseconds a knob may hold: beyond anything meant, and far from where sums of them overflow.
const MOST_BYTES: u64 = 1 << 50;
const MOST_MILLISECONDS: u64 = 1_000_000 * 3_600_000;

pub(super) const BYTES: Kind<usize> = Kind {
    unit: "bytes",
    expected: "bytes, or a number with KiB, MiB or GiB, up to 1048576GiB",
    read: |text| {
        scaled(
            text,
            &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)],
        )
        .filter(|n| *n <= MOST_BYTES)
        .and_then(|n| usize::try_from(n).ok())
    },
    show: |bytes| {
        shown(
            *bytes as u64,
            &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)],
            "",
        )
    },
};

/// At least one byte: with none of it nothing gets in or out.
pub(super) const ROOM: Kind<usize> = Kind {
    expected: "at least one byte: bytes, or a number with KiB, MiB or GiB, up to 1048576GiB",
    read: |text| (BYTES.read)(text).filter(|n| *n > 0),
    ..BYTES
};

/// What each connection has for life.
pub(super) const BUFFER: Kind<usize> = Kind {
    expected: "1KiB to 16MiB: bytes, or a number with KiB or MiB",
    read: |text| (BYTES.read)(text).filter(|n| (1 << 10..=16 << 20).contains(n)),
    ..BYTES
};

pub(super) const DURATION: Kind<Duration> = Kind {
    unit: "duration",
    expected: "milliseconds, or a number with ms, s, m or h, up to 1000000h",
    read: |text| {
        scaled(
            text,
            &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("", 1)],
        )
        .filter(|ms| *ms <= MOST_MILLISECONDS)
        .map(Duration::from_millis)
    },
    show: |duration| {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        shown(ms, &[("h", 3_600_000), ("m", 60_000), ("s", 1_000)], "ms")
    },
};

/// How often, or how long at the longest, something is waited for: without any time it would be done without end, or
/// never.
pub(super) const PERIOD: Kind<Duration> = Kind {
    expected: "at least 1ms: milliseconds, or a number with ms, s, m or h, up to 1000000h",
    read: |text| (DURATION.read)(text).filter(|duration| !duration.is_zero()),
    ..DURATION
};

/// A duration that its readers are told in whole seconds.
pub(super) const SECONDS: Kind<Duration> = Kind {
    expected: "at least 1s: milliseconds, or a number with ms, s, m or h, up to 1000000h",
    read: |text| (DURATION.read)(text).filter(|duration| duration.as_secs() > 0),
    ..DURATION
};

/// A duration of the serving loop's environment: plain milliseconds above zero, within 32 bits (SS-12).
pub(super) const LOOP_DURATION: Kind<Duration> = Kind {
    read: |text| match digits(text) {
        Some(ms) if ms == 0 || ms > u64::from(u32::MAX) => None,
        _ => (DURATION.read)(text).filter(|duration| !duration.is_zero()),
    },
    ..DURATION
};

/// Digits and nothing else: reading a prefix of `12abc` as 12 is the bug this avoids.
fn digits(text: &str) -> Option<u64> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// A number with one of the suffixes, in units of the smallest.
fn scaled(text: &str, suffixes: &[(&str, u64)]) -> Option<u64> {
    suffixes.iter().find_map(|(suffix, scale)| {
        digits(text.strip_suffix(suffix)?.trim_end()).and_then(|n| n.checked_mul(*scale))
    })
}

/// The number in the largest unit that holds it exactly.
fn shown(n: u64, suffixes: &[(&str, u64)], plain: &str) -> String {
    match suffixes
        .iter()
        .find(|(_, scale)| n > 0 && n.is_multiple_of(*scale))
    {
        Some((suffix, scale)) => format!("{}{suffix}", n / scale),
        None => format!("{n}{plain}"),
    }
}

/// A value of the configuration file as text; `None` for what no knob can be.
pub(super) fn from_toml(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(n) => Some(n.to_string()),
        toml::Value::Boolean(on) => Some(on.to_string()),
        toml::Value::Array(items) => items
            .iter()
            .map(|item| item.as_str())
            .collect::<Option<Vec<_>>>()
            .map(|items| items.join(",")),
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// A shown value as TOML writes it.
pub(super) fn as_toml(shown: &str) -> String {
    if digits(shown).is_some() || matches!(shown, "true" | "false") {
        shown.to_owned()
    } else {
        toml::Value::String(shown.to_owned()).to_string()
    }
}
