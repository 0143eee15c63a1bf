//! The guide's table of options says what the code does.

use std::time::Duration;

use exs::{Options, QueueOptions};

const TUNING: &str = include_str!("../../docs/book/src/guide/tuning.md");

fn size(bytes: u64) -> String {
    match bytes {
        n if n % (1 << 30) == 0 => format!("{} GiB", n >> 30),
        n if n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => n.to_string(),
    }
}

fn time(t: Duration) -> String {
    format!("{} s", t.as_secs_f64())
}

fn limit(t: Option<Duration>) -> String {
    t.map_or("none".to_owned(), time)
}

fn count(n: Option<u8>) -> String {
    n.map_or("none".to_owned(), |n| n.to_string())
}

fn number(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |n| n.to_string())
}

fn switch(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// Every field and its default.
fn defaults() -> Vec<(&'static str, String)> {
    let (o, q) = (Options::default(), QueueOptions::default());
    vec![
        ("transport", format!("{:?}", o.transport).to_lowercase()),
        ("device", o.device.unwrap_or_else(|| "any".to_owned())),
        ("trust_group", o.trust_group.unwrap_or_else(|| "none".to_owned())),
        ("ring_size", size(o.ring_size as u64)),
        (
            "inline_threshold",
            o.inline_threshold.map_or_else(|| "by transport".to_owned(), |n| size(n as u64)),
        ),
        ("max_message", size(o.max_message)),
        ("connect_timeout", time(o.connect_timeout)),
        ("send_timeout", limit(o.send_timeout)),
        ("recv_timeout", limit(o.recv_timeout)),
        ("linger", time(o.linger)),
        ("keep_alive", limit(o.keep_alive)),
        ("dead_after", limit(o.dead_after)),
        ("no_delay", switch(o.no_delay)),
        ("crc", switch(o.crc)),
        ("link_group", o.link_group.to_string()),
        ("v6_only", switch(o.v6_only)),
        ("traffic_class", count(o.path.traffic_class)),
        ("retry_count", count(o.path.retry_count)),
        ("rnr_retry_count", count(o.path.rnr_retry_count)),
        ("rnr_timer", limit(o.path.rnr_timer)),
        ("ack_timeout", limit(o.path.ack_timeout)),
        ("pkey", number(o.path.pkey)),
        ("service_level", count(o.path.service_level)),
        ("path_mtu", number(o.path.path_mtu)),
        ("QueueOptions::depth", q.depth.to_string()),
        ("QueueOptions::wait", format!("{:?}", q.wait).to_lowercase()),
        (
            "QueueOptions::shard",
            q.shard.map_or_else(|| "by first use".to_owned(), |s| format!("{s:?}")),
        ),
    ]
}

/// True for variables of the library, and not of its tests.
fn is_option(name: &str) -> bool {
    name.strip_prefix("EXS_").is_some_and(|rest| !rest.starts_with("TEST_"))
}

#[test]
fn the_table_of_options_has_every_default() {
    if let Some((name, _)) = std::env::vars().find(|(name, _)| is_option(name)) {
        return exs_tests::skip::skip(&format!("{name} is set, and may change a default"));
    }
    for (field, default) in defaults() {
        let head = format!("| `{field}` |");
        let row = TUNING.lines().find(|l| l.starts_with(&head));
        let told = row.and_then(|row| row.split('|').nth(3)).map(str::trim);
        assert_eq!(told, Some(default.as_str()), "the default of {field} in tuning.md");
    }
}

/// A field that is added is added to the table, too.
#[test]
fn no_option_is_forgotten() {
    let named: Vec<&str> = defaults().iter().map(|(name, _)| *name).collect();
    let fields = |text: String, of: &str| -> Vec<String> {
        let words: Vec<&str> = text.split(' ').collect();
        words.iter().filter_map(|w| Some(format!("{of}{}", w.strip_suffix(':')?))).collect()
    };
    let mut all = fields(format!("{:?}", Options::default()), "");
    all.extend(fields(format!("{:?}", QueueOptions::default()), "QueueOptions::"));
    // The part has its fields beside it.
    all.retain(|name| name != "path");
    assert_eq!(all, named);
}
