//! The figures of the process through the `metrics` facade, as Prometheus gets them.

use exs::{EventQueue, Options, RecvFlags, Token, Transport};
use exs_tests::harness::{Watchdog, stream_pair};
use metrics_exporter_prometheus::PrometheusBuilder;

/// The value of a series.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
}

/// The only test of this process, since the figures are those of the process.
#[test]
fn prometheus_gets_the_figures_of_the_process() {
    const BYTES: usize = 200_000;
    let _dog = Watchdog::new("metrics");
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let scrape = || {
        metrics::with_local_recorder(&recorder, exs::metrics::record).unwrap();
        page.render()
    };
    let soft = Options::default().with_transport(Transport::Soft);
    let (a, b) = stream_pair(&soft);
    let queue = EventQueue::new(4).unwrap();
    b.recv(&queue, Token(1), vec![0; BYTES], RecvFlags::WAITALL).unwrap();
    a.blocking().send_all(&vec![7; BYTES]).unwrap();
    queue.next().unwrap().into_result().unwrap();

    let first = scrape();
    let paths = ["direct", "indirect", "inline"];
    let bytes = |page: &str, which: &str| -> f64 {
        let series = |path: &&str| {
            format!("exs_{which}_bytes_total{{transport=\"soft\",device=\"soft\",path=\"{path}\"}}")
        };
        paths.iter().map(|path| value(page, &series(path))).sum()
    };
    assert_eq!(bytes(&first, "sent"), BYTES as f64);
    assert_eq!(bytes(&first, "received"), BYTES as f64);
    let of_soft = |name: &str| format!("{name}{{transport=\"soft\",device=\"soft\"}}");
    assert_eq!(value(&first, &of_soft("exs_connections")), 2.0);
    assert_eq!(value(&first, "exs_listeners"), 0.0);
    assert!(value(&first, "exs_events_total") >= 1.0);
    let received = r#"exs_operations_total{transport="soft",device="soft",kind="recv"}"#;
    assert_eq!(value(&first, received), 1.0);
    assert!(first.contains("# TYPE exs_sent_bytes_total counter"), "{first}");
    assert!(first.contains("# HELP exs_sent_bytes_total Bytes of sends"), "{first}");
    assert!(first.contains("# TYPE exs_connections gauge"), "{first}");
    for line in first.lines().filter(|line| !line.starts_with('#') && line.contains("_total")) {
        assert!(!line.contains("127.0.0.1"), "no socket is a label: {line}");
    }

    // Connections that are gone stay in the counters, and leave the gauges.
    let closer = std::thread::spawn(move || b.blocking().close().unwrap());
    a.blocking().close().unwrap();
    closer.join().unwrap();
    let second = scrape();
    assert_eq!(bytes(&second, "sent"), BYTES as f64);
    assert_eq!(value(&second, &of_soft("exs_connections")), 0.0);
}
