//! The figures of this process through the facade of the crate [metrics], for exporters such as
//! metrics-exporter-prometheus (feature `metrics`). This is an EXS extension.
//!
//! Call [`record`] before each scrape. EXS has no thread that does it: figures between two scrapes
//! would be seen by no reader, and traffic pays nothing for figures that no reader wants.
//!
//! Names and units follow the conventions of Prometheus. Sums are per device, with the labels
//! `transport` (`soft`, `shm` or `verbs`) and `device` (as `rxe0`). Single sockets are not labels,
//! since each label makes a time series that outlives its socket: `exs-top` and
//! [`stats`](crate::stats) show sockets.
//!
//! | metric | labels besides | what it counts |
//! |---|---|---|
//! | `exs_sent_bytes_total` | `path`: `direct`, `indirect`, `inline` | bytes of sends |
//! | `exs_received_bytes_total` | `path` | bytes for receives |
//! | `exs_rdma_read_bytes_total`, `exs_rdma_write_bytes_total` | | bytes of the program's RDMA READs and WRITEs |
//! | `exs_operations_total` | `kind`: `send`, `recv`, `one_sided` | operations that ended |
//! | `exs_messages_sent_total`, `exs_messages_received_total` | | messages of the protocol |
//! | `exs_copies_total`, `exs_copied_bytes_total` | | copies that the library made |
//! | `exs_adverts_sent_total`, `exs_adverts_received_total`, `exs_adverts_stale_total` | | receives that were advertised |
//! | `exs_stalls_total` | `reason`: `credits`, `queue` | times that something waited for the peer, or for the send queue |
//! | `exs_extra_receives_total` | `change`: `added`, `dropped` | receives beyond the usual ones, for busy peers |
//! | `exs_connections` | | connections now |
//!
//! Of the whole process, without labels: the counters `exs_events_total`, `exs_engine_runs_total`,
//! `exs_sleeps_total` and `exs_system_calls_total`; the gauges `exs_sockets`, `exs_listeners`,
//! `exs_kernel_sockets`, `exs_operations_in_flight` and `exs_shards`.
//!
//! [metrics]: https://docs.rs/metrics

use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use crate::progress::{Error, Totals, first_shard, stats_totals};
use crate::session::Counters;
use crate::sys::system_calls;

/// A series of a counter: its label and the value of that, or "" for none; what it counts.
type Series = (&'static str, &'static str, fn(&Counters) -> u64);

/// A counter of each device.
struct OfDevice {
    name: &'static str,
    unit: Unit,
    help: &'static str,
    series: &'static [Series],
}

const fn of_device(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    series: &'static [Series],
) -> OfDevice {
    OfDevice { name, unit, help, series }
}

const OF_DEVICES: [OfDevice; 14] = [
    of_device(
        "exs_sent_bytes_total",
        Unit::Bytes,
        "Bytes of sends, by their path: direct into receives of the peer, indirect by its ring, or \
         inline in messages.",
        &[
            ("path", "direct", |c| c.tx_direct),
            ("path", "indirect", |c| c.tx_indirect),
            ("path", "inline", |c| c.tx_inline),
        ],
    ),
    of_device(
        "exs_received_bytes_total",
        Unit::Bytes,
        "Bytes that arrived for receives, by their path.",
        &[
            ("path", "direct", |c| c.rx_direct),
            ("path", "indirect", |c| c.rx_indirect),
            ("path", "inline", |c| c.rx_inline),
        ],
    ),
    of_device(
        "exs_rdma_read_bytes_total",
        Unit::Bytes,
        "Bytes of RDMA READs of the program.",
        &[("", "", |c| c.read_bytes)],
    ),
    of_device(
        "exs_rdma_write_bytes_total",
        Unit::Bytes,
        "Bytes of RDMA WRITEs of the program.",
        &[("", "", |c| c.write_bytes)],
    ),
    of_device(
        "exs_operations_total",
        Unit::Count,
        "Operations that ended.",
        &[
            ("kind", "send", |c| c.sends),
            ("kind", "recv", |c| c.recvs),
            ("kind", "one_sided", |c| c.one_sided),
        ],
    ),
    of_device(
        "exs_messages_sent_total",
        Unit::Count,
        "Messages of the EXS protocol that were sent.",
        &[("", "", |c| c.messages_sent)],
    ),
    of_device(
        "exs_messages_received_total",
        Unit::Count,
        "Messages of the EXS protocol that arrived.",
        &[("", "", |c| c.messages_received)],
    ),
    of_device(
        "exs_copies_total",
        Unit::Count,
        "Copies that the library made.",
        &[("", "", |c| c.copies)],
    ),
    of_device(
        "exs_copied_bytes_total",
        Unit::Bytes,
        "Bytes that the library copied.",
        &[("", "", |c| c.copied_bytes)],
    ),
    of_device(
        "exs_adverts_sent_total",
        Unit::Count,
        "Receives advertised to peers.",
        &[("", "", |c| c.adverts_sent)],
    ),
    of_device(
        "exs_adverts_received_total",
        Unit::Count,
        "Receives that peers advertised.",
        &[("", "", |c| c.adverts_received)],
    ),
    of_device(
        "exs_adverts_stale_total",
        Unit::Count,
        "Adverts withdrawn or overtaken before they were used.",
        &[("", "", |c| c.adverts_stale)],
    ),
    of_device(
        "exs_stalls_total",
        Unit::Count,
        "Times that something waited: for credits of the peer, or for room in the send queue.",
        &[("reason", "credits", |c| c.credit_stalls), ("reason", "queue", |c| c.queue_stalls)],
    ),
    of_device(
        "exs_extra_receives_total",
        Unit::Count,
        "Receives posted beyond the usual ones because a peer was busy, and those taken back.",
        &[("change", "added", |c| c.receives_added), ("change", "dropped", |c| c.receives_dropped)],
    ),
];

/// Counters of the process.
type OfProcess = (&'static str, &'static str, fn(&Totals) -> u64);

const COUNTERS: [OfProcess; 4] = [
    ("exs_events_total", "Events delivered.", |t| t.events),
    ("exs_engine_runs_total", "Runs of the engines.", |t| t.runs),
    ("exs_sleeps_total", "Times that a thread slept because it had no work.", |t| t.sleeps),
    ("exs_system_calls_total", "System calls of EXS that moved data, waited or woke.", |_| {
        system_calls()
    }),
];

const GAUGES: [OfProcess; 5] = [
    ("exs_sockets", "Sockets of the process.", |t| t.sockets),
    ("exs_listeners", "Sockets that listen.", |t| t.listeners),
    ("exs_kernel_sockets", "Kernel sockets with operations in flight.", |t| t.kernel_sockets),
    ("exs_operations_in_flight", "Operations in flight.", |t| t.in_flight),
    ("exs_shards", "Shards of the process.", |t| t.shards),
];

const CONNECTIONS: (&str, &str) = ("exs_connections", "Connections of the device.");

/// Records the figures of this process, as they are now, with the recorder of the crate `metrics`.
/// Without a recorder, nothing happens. It also describes each metric, with its unit.
///
/// The walk over the sockets releases the lock of a shard after each few of them, so traffic goes on.
///
/// # Errors
/// [`Error::Start`] if EXS cannot start.
///
/// With axum and metrics-exporter-prometheus, a page for Prometheus is:
///
/// ```text
/// let recorder = PrometheusBuilder::new().install_recorder()?;
/// let page = move || async move {
///     exs::metrics::record().map_err(|e| (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
///     Ok::<_, (StatusCode, String)>(recorder.render())
/// };
/// let app = Router::new().route("/metrics", get(page));
/// ```
///
/// ```
/// exs::metrics::record()?;
/// # Ok::<(), exs::Error>(())
/// ```
pub fn record() -> Result<(), Error> {
    first_shard()?;
    let totals = stats_totals();
    describe();
    for device in &totals.devices {
        let (transport, name) = (device.transport.to_string(), &device.device);
        for of in &OF_DEVICES {
            for (label, value, count) in of.series {
                let (transport, name) = (transport.clone(), name.clone());
                let counter = match *label {
                    "" => counter!(of.name, "transport" => transport, "device" => name),
                    label => {
                        counter!(of.name, "transport" => transport, "device" => name, label => *value)
                    }
                };
                counter.absolute(count(&device.counters));
            }
        }
        let connections = gauge!(CONNECTIONS.0, "transport" => transport, "device" => name.clone());
        connections.set(level(device.connections));
    }
    for (name, _, count) in COUNTERS {
        counter!(name).absolute(count(&totals));
    }
    for (name, _, count) in GAUGES {
        gauge!(name).set(level(count(&totals)));
    }
    Ok(())
}

fn describe() {
    for of in &OF_DEVICES {
        describe_counter!(of.name, of.unit, of.help);
    }
    for (name, help, _) in COUNTERS {
        describe_counter!(name, Unit::Count, help);
    }
    for (name, help, _) in GAUGES {
        describe_gauge!(name, Unit::Count, help);
    }
    describe_gauge!(CONNECTIONS.0, Unit::Count, CONNECTIONS.1);
}

/// A number of things, as gauges have it. It is far below 2^53.
fn level(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
