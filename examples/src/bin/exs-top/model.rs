//! What a snapshot says.
//!
//! A field that is missing is 0, so that a reader of this version understands a process of another
//! one. The lines themselves stay as they came, for `--json`.

use serde::Deserialize;
use serde_json::{Map, Value};

/// The version of the format that is understood here.
pub(crate) const FORMAT: u64 = 1;

/// The line about the process.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    pub(crate) format: u64,
    pub(crate) exs: String,
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) at_us: u64,
    pub(crate) started: u64,
    pub(crate) shards: u64,
    pub(crate) sockets: u64,
    pub(crate) listeners: u64,
    pub(crate) kernel_sockets: u64,
    pub(crate) in_flight: u64,
    pub(crate) events: u64,
    pub(crate) engine_runs: u64,
    pub(crate) sleeps: u64,
    pub(crate) system_calls: u64,
    pub(crate) counters: Counters,
    pub(crate) devices: Vec<Device>,
}

/// A device of a process.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Device {
    pub(crate) transport: String,
    pub(crate) device: String,
    pub(crate) connections: u64,
    pub(crate) counters: Counters,
}

/// The line about a socket.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Socket {
    pub(crate) id: String,
    pub(crate) at_us: u64,
    pub(crate) kind: String,
    pub(crate) state: String,
    pub(crate) local: String,
    pub(crate) peer: String,
    pub(crate) transport: String,
    pub(crate) device: String,
    pub(crate) available: u64,
    pub(crate) in_flight: InFlight,
    pub(crate) waits: Vec<String>,
    pub(crate) listener: Option<Listener>,
    pub(crate) counters: Counters,
    /// Of a kernel socket, what the kernel has counted. None: it counts nothing for this kind.
    pub(crate) sent_bytes: Option<u64>,
    pub(crate) received_bytes: Option<u64>,
}

impl Socket {
    /// True for an ordinary kernel socket, which has no counters.
    pub(crate) fn is_of_kernel(&self) -> bool {
        self.transport == "kernel"
    }

    /// What the socket has moved so far. None: nothing counts it.
    pub(crate) fn sums(&self) -> Option<TrafficSums> {
        if !self.is_of_kernel() {
            return Some(self.counters.sums());
        }
        let (sent, received) = (self.sent_bytes?, self.received_bytes?);
        Some(TrafficSums { sent, received, operations: None, stalls: None })
    }
}

/// The sums of a socket or a process up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrafficSums {
    /// Bytes that left.
    pub(crate) sent: u64,
    /// Bytes that came.
    pub(crate) received: u64,
    /// Operations that ended; None: they are not counted.
    pub(crate) operations: Option<u64>,
    /// Times that something waited; None: they are not counted.
    pub(crate) stalls: Option<u64>,
}

/// The operations of a socket that have not ended.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InFlight {
    pub(crate) sends: u64,
    pub(crate) recvs: u64,
    pub(crate) one_sided: u64,
    /// Of a kernel socket.
    pub(crate) accepts: u64,
    /// Of a kernel socket.
    pub(crate) polls: u64,
}

impl InFlight {
    pub(crate) fn sum(&self) -> u64 {
        [self.sends, self.recvs, self.one_sided, self.accepts, self.polls]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// What a listener is doing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Listener {
    pub(crate) devices: Vec<String>,
    pub(crate) backlog: u64,
    pub(crate) starting: u64,
    pub(crate) ready: u64,
    pub(crate) waiting: u64,
    pub(crate) accepts: u64,
    pub(crate) established: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Counters {
    pub(crate) sends: u64,
    pub(crate) recvs: u64,
    pub(crate) one_sided: u64,
    pub(crate) sent_direct: u64,
    pub(crate) sent_indirect: u64,
    pub(crate) sent_inline: u64,
    pub(crate) received_direct: u64,
    pub(crate) received_indirect: u64,
    pub(crate) received_inline: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) adverts_sent: u64,
    pub(crate) adverts_received: u64,
    pub(crate) adverts_stale: u64,
    pub(crate) credit_stalls: u64,
    pub(crate) queue_stalls: u64,
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
}

impl Counters {
    /// Bytes that left: of sends, and of RDMA WRITEs of the program.
    pub(crate) fn sent(&self) -> u64 {
        [self.sent_direct, self.sent_indirect, self.sent_inline, self.write_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Bytes that came: for receives, and of RDMA READs of the program.
    pub(crate) fn received(&self) -> u64 {
        [self.received_direct, self.received_indirect, self.received_inline, self.read_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// All sums.
    pub(crate) fn sums(&self) -> TrafficSums {
        TrafficSums {
            sent: self.sent(),
            received: self.received(),
            operations: Some(self.operations()),
            stalls: Some(self.stalls()),
        }
    }

    /// Operations that ended.
    pub(crate) fn operations(&self) -> u64 {
        self.sends.saturating_add(self.recvs).saturating_add(self.one_sided)
    }

    /// Times that something waited.
    pub(crate) fn stalls(&self) -> u64 {
        self.credit_stalls.saturating_add(self.queue_stalls)
    }
}

/// A line with the object that it came as.
#[derive(Clone, Debug)]
pub(crate) struct Line<T> {
    pub(crate) data: T,
    pub(crate) raw: Map<String, Value>,
}

/// A whole snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) process: Line<Process>,
    pub(crate) sockets: Vec<Line<Socket>>,
}

fn line<T: for<'a> Deserialize<'a>>(raw: Map<String, Value>) -> Result<Line<T>, String> {
    let data = T::deserialize(Value::Object(raw.clone())).map_err(|e| e.to_string())?;
    Ok(Line { data, raw })
}

impl Snapshot {
    /// Reads the lines of a snapshot.
    ///
    /// # Errors
    /// What is wrong with the text, which may have come from a program that only pretends.
    pub(crate) fn parse(text: &str) -> Result<Snapshot, String> {
        let (mut process, mut sockets, mut ended) = (None, Vec::new(), None);
        for (number, text) in (1..).zip(text.lines()) {
            let at = |e: String| format!("line {number}: {e}");
            let raw: Map<String, Value> =
                serde_json::from_str(text).map_err(|e| at(e.to_string()))?;
            match raw.get("type").and_then(Value::as_str).unwrap_or_default() {
                "process" if process.is_none() => {
                    let found: Line<Process> = line(raw).map_err(at)?;
                    match found.data.format {
                        FORMAT => process = Some(found),
                        other => {
                            return Err(format!(
                                "the format has the version {other}; this exs-top knows {FORMAT}"
                            ));
                        }
                    }
                }
                "socket" => sockets.push(line(raw).map_err(at)?),
                "end" => ended = raw.get("sockets").and_then(Value::as_u64),
                // A later version may have lines of other types.
                _ => {}
            }
        }
        let Some(process) = process else {
            return Err("it is not a snapshot of a process".to_owned());
        };
        if ended != Some(sockets.len() as u64) {
            return Err("the snapshot is not complete".to_owned());
        }
        Ok(Snapshot { process, sockets })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A snapshot of a process with one connection, which has sent and received as much as is said.
    pub(crate) fn text(pid: u32, at_us: u64, sent: u64, received: u64) -> String {
        let counters = format!(
            r#"{{"sends":{ops},"recvs":1,"sent_direct":{sent},"received_inline":{received},"credit_stalls":3}}"#,
            ops = sent / 1000,
        );
        format!(
            "{{\"type\":\"process\",\"format\":1,\"exs\":\"9.8.7\",\"pid\":{pid},\"name\":\"server\",\
             \"uid\":0,\"at_us\":{at_us},\"started\":1,\"shards\":2,\"sockets\":2,\"listeners\":1,\
             \"in_flight\":3,\"events\":5,\"counters\":{counters},\"devices\":[{{\"transport\":\"soft\",\
             \"device\":\"soft\",\"connections\":1,\"counters\":{counters}}}],\"later\":[1]}}\n\
             {{\"type\":\"socket\",\"id\":\"0.1.1\",\"at_us\":{at_us},\"kind\":\"stream\",\
             \"state\":\"open\",\"local\":\"192.0.2.1:7471\",\"peer\":\"192.0.2.2:40000\",\
             \"transport\":\"soft\",\"device\":\"soft\",\"in_flight\":{{\"sends\":1,\"recvs\":2}},\
             \"waits\":[\"peer\"],\"counters\":{counters}}}\n\
             {{\"type\":\"news\"}}\n\
             {{\"type\":\"socket\",\"id\":\"0.0.1\",\"at_us\":{at_us},\"kind\":\"stream\",\
             \"state\":\"listening\",\"local\":\"0.0.0.0:7471\",\"listener\":{{\"devices\":[\"soft\"],\
             \"backlog\":8,\"established\":1}}}}\n\
             {{\"type\":\"end\",\"sockets\":2}}\n"
        )
    }

    /// As [`text`], with a kernel socket that has sent this much, and one whose bytes nothing counts.
    pub(crate) fn text_with_kernel(pid: u32, at_us: u64, sent: u64) -> String {
        let kernel = format!(
            "{{\"type\":\"socket\",\"id\":\"0.kernel.77\",\"at_us\":{at_us},\"kind\":\"stream\",\
             \"state\":\"open\",\"local\":\"192.0.2.1:80\",\"peer\":\"192.0.2.9:5000\",\
             \"transport\":\"kernel\",\"inode\":77,\"in_flight\":{{\"sends\":3,\"recvs\":1,\
             \"accepts\":0,\"polls\":2}},\"waits\":[\"peer\"],\"sent_bytes\":{sent},\
             \"received_bytes\":0}}\n\
             {{\"type\":\"socket\",\"id\":\"0.kernel.78\",\"at_us\":{at_us},\"kind\":\"datagram\",\
             \"state\":\"new\",\"transport\":\"kernel\",\"inode\":78,\"in_flight\":{{\"recvs\":1}}}}\n\
             {{\"type\":\"end\",\"sockets\":4}}\n"
        );
        text(pid, at_us, 0, 0).replace("{\"type\":\"end\",\"sockets\":2}\n", &kernel)
    }

    #[test]
    fn a_snapshot_is_read_and_what_is_unknown_is_kept() {
        let s = Snapshot::parse(&text(7, 1, 5000, 70)).unwrap();
        assert_eq!((s.process.data.pid, s.process.data.name.as_str()), (7, "server"));
        assert_eq!(s.process.raw["later"], serde_json::json!([1]));
        assert_eq!((s.sockets[0].data.counters.sent(), s.sockets.len()), (5000, 2));
        assert_eq!(s.sockets[0].data.waits, ["peer"]);
        assert_eq!(s.sockets[1].data.listener.as_ref().unwrap().backlog, 8);
    }

    #[test]
    fn what_is_no_snapshot_is_refused_with_a_reason() {
        let whole = text(7, 1, 5, 7);
        let cut = &whole[..whole.rfind("{\"type\":\"end\"").unwrap()];
        for (text, why) in [
            ("", "not a snapshot"),
            ("HTTP/1.1 400 Bad Request\n", "line 1"),
            ("[1]\n", "line 1"),
            (cut, "not complete"),
            (&whole.replace("\"format\":1", "\"format\":2"), "version 2"),
            (&whole.replace("\"pid\":7", "\"pid\":-7"), "line 1"),
            (&whole.replace("\"sockets\":2}", "\"sockets\":3}"), "not complete"),
        ] {
            let e = Snapshot::parse(text).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
    }
}
