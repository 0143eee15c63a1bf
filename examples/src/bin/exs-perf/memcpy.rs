//! How fast this machine copies memory: what no transport between two processes that copies
//! once can beat.
//!
//! The buffers are of the kind and number that a run over EXS has: blocks in two rings of
//! registered memory, copied one after the other; those that receive are more, as there.

use exs_tools::fail::Failure;
use exs_tools::registered::buffers;
use quanta::Instant;

use crate::cli::Memcpy;
use crate::crew::Outcome;
use crate::exs_flow::AHEAD;
use crate::job::{Job, Test};
use crate::report::{Record, Report, Run};
use crate::usage::{Since, Usage};

pub(crate) fn run(args: &Memcpy) -> Result<(), Failure> {
    let mut report = Report::new(args.load.json);
    for size in args.load.sizes(Test::Bw.usual_size()) {
        let depth = args.load.depth.unwrap_or(Test::Bw.usual_depth());
        let job = Job { size, depth, ..Job::new(Test::Bw) }.fit();
        job.check()?;
        let from = buffers(job.depth as usize, size)?;
        let mut to = buffers(job.depth as usize * AHEAD, size)?;
        let since = Since::now(true)?;
        let begun = Instant::now();
        let (end, mut blocks) = (begun + args.load.duration, 0);
        while blocks == 0 || Instant::now() < end {
            for (to, from) in to.iter_mut().zip(from.iter().cycle()) {
                to.copy_from_slice(std::hint::black_box(from));
                std::hint::black_box(&to);
            }
            blocks += to.len() as u64;
        }
        let outcome = Outcome {
            moved: vec![(blocks, 0)],
            round_trips: None,
            system_calls: None,
            ended: Instant::now(),
        };
        let outcomes = vec![outcome];
        let local = since.usage(&outcomes)?;
        let (route, transport) = ("memcpy".to_owned(), "memcpy".to_owned());
        let remote = Usage::default();
        let run = Run { route, transport, begun, outcomes, local, remote };
        report.print(&Record::new(&job, run)?)?;
    }
    Ok(())
}
