//! The README's table of options says what the code does.

use std::time::Duration;

use exs::{Options, QueueOptions};

const README: &str = include_str!("../../README.md");

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

fn switch(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// Every field and its default. The patterns name all fields, so that a new one is not
/// forgotten.
fn defaults() -> Vec<(&'static str, String)> {
    let Options {
        transport,
        device,
        trust_group,
        ring_size,
        inline_threshold,
        max_message,
        connect_timeout,
        send_timeout,
        recv_timeout,
        linger,
        keep_alive,
        dead_after,
        no_delay,
        crc,
        v6_only,
    } = Options::default();
    let QueueOptions { depth, wait } = QueueOptions::default();
    vec![
        ("transport", format!("{transport:?}").to_lowercase()),
        ("device", device.unwrap_or_else(|| "any".to_owned())),
        ("trust_group", trust_group.unwrap_or_else(|| "none".to_owned())),
        ("ring_size", size(ring_size as u64)),
        (
            "inline_threshold",
            inline_threshold.map_or_else(|| "by transport".to_owned(), |n| size(n as u64)),
        ),
        ("max_message", size(max_message)),
        ("connect_timeout", time(connect_timeout)),
        ("send_timeout", limit(send_timeout)),
        ("recv_timeout", limit(recv_timeout)),
        ("linger", time(linger)),
        ("keep_alive", limit(keep_alive)),
        ("dead_after", limit(dead_after)),
        ("no_delay", switch(no_delay)),
        ("crc", switch(crc)),
        ("v6_only", switch(v6_only)),
        ("QueueOptions::depth", depth.to_string()),
        ("QueueOptions::wait", format!("{wait:?}").to_lowercase()),
    ]
}

#[test]
fn the_table_of_options_has_every_default() {
    if let Some((name, _)) = std::env::vars().find(|(name, _)| name.starts_with("EXS_")) {
        println!("skipped: {name} is set, and may change a default");
        return;
    }
    for (field, default) in defaults() {
        let head = format!("| `{field}` |");
        let row = README.lines().find(|l| l.starts_with(&head));
        let told = row.and_then(|row| row.split('|').nth(3)).map(str::trim);
        assert_eq!(told, Some(default.as_str()), "the default of {field} in README.md");
    }
}
