//! What a run costs a process: processor time, copies, wake-ups, memory.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use exs::Counters;
use exs_tools::fail::{During, Failure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::crew::Outcome;

/// Figures of one process over one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Processor time of all threads, user and system.
    pub(crate) cpu: Duration,
    /// What the library counted; of plain sockets, what we did.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// A moment from which usage is counted.
pub(crate) struct Since {
    cpu: Duration,
    /// None: plain sockets.
    counters: Option<Counters>,
}

impl Since {
    pub(crate) fn now(plain: bool) -> Result<Since, Failure> {
        let counters = if plain { None } else { Some(exs::counters().during("counters")?) };
        Ok(Since { cpu: cpu(), counters })
    }

    pub(crate) fn usage(&self, outcomes: &[Outcome]) -> Result<Usage, Failure> {
        let cpu = cpu().saturating_sub(self.cpu);
        let mut counters = match &self.counters {
            Some(then) => difference(then, &exs::counters().during("counters")?),
            None => BTreeMap::new(),
        };
        let calls = outcomes.iter().filter_map(|o| o.system_calls).reduce(|a, b| a + b);
        counters.extend(calls.map(|n| ("system_calls".to_owned(), n)));
        Ok(Usage { cpu, counters })
    }
}

/// Processor time of this process so far.
pub(crate) fn cpu() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Duration::from_secs(part(t.tv_sec)) + Duration::from_nanos(part(t.tv_nsec))
}

/// Processor time of another process so far: of the threads that it has now.
pub(crate) fn cpu_of(process: u32) -> Result<Duration, Failure> {
    let tasks = format!("/proc/{process}/task");
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(&tasks).during(&tasks)? {
        let task = task.during(&tasks)?.path();
        let file = task.join("schedstat");
        let text = match fs::read_to_string(&file) {
            // The thread has ended meanwhile.
            Err(_) if !task.exists() => continue,
            read => read.during(format!("{} (CONFIG_SCHED_INFO)", file.display()))?,
        };
        let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
        let nanos =
            nanos.ok_or_else(|| Failure(format!("{} begins with no number", file.display())))?;
        sum += Duration::from_nanos(nanos);
    }
    Ok(sum)
}

fn difference(then: &Counters, now: &Counters) -> BTreeMap<String, u64> {
    macro_rules! of {
        ($($name:ident)*) => {
            [$((stringify!($name), now.$name - then.$name)),*]
        };
    }
    let all = of!(
        sent_direct sent_indirect sent_inline received_direct received_indirect received_inline
        copies copied_bytes adverts_sent adverts_stale credit_stalls queue_stalls
        messages_sent messages_received events engine_runs sleeps system_calls
    );
    all.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}

/// Memory of this process that is in RAM, bytes.
pub(crate) fn resident() -> Result<u64, Failure> {
    let file = "/proc/self/statm";
    let text = fs::read_to_string(file).during(file)?;
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Failure(format!("{file} is not understood: {text}")))?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Sees that this process may open `n` connections: most shells allow 1024 descriptors by
/// default, and more to whom asks.
pub(crate) fn allow_connections(n: u32) -> Result<(), Failure> {
    // Shared memory needs a few descriptors for each.
    let need = u64::from(n) * 4 + 100;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|have| have >= need) {
        return Ok(());
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).during("RLIMIT_NOFILE")?;
    match limit.maximum {
        Some(most) if most < u64::from(n) + 100 => Err(Failure(format!(
            "{n} connections need as many descriptors, and this process may have {most}: raise the limit \
             (ulimit -Hn)"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_seen() {
        let since = Since::now(false).unwrap();
        let begun = cpu();
        while cpu() - begun < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        let usage = since.usage(&[]).unwrap();
        assert!(usage.cpu >= Duration::from_millis(2), "{usage:?}");
        assert_eq!(usage.counters["sent_direct"], 0, "nothing is sent by this process");
        assert!(usage.counters.contains_key("system_calls"));
        assert!(resident().unwrap() > 100 << 10);
        allow_connections(10).unwrap();
        assert!(allow_connections(u32::MAX).unwrap_err().to_string().contains("ulimit"));
    }
}
