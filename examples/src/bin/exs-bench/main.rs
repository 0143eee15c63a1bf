//! EXS and its neighbours in one run on one machine: what `make bench` does.
//!
//! Shape: `plan` says what is measured (sections of cases), `contender` names the programs that take
//! part and how each is run (`process`); `files` is the section that copies files. Everything is done
//! in turn, A B C A B C, so that whatever else the machine does meets all of them alike; the
//! medians count. `results` keeps all samples and writes them as JSON; `page` makes the
//! tables, `aims` holds the figures against what EXS aims at, `plots` and `svg` draw.
//! `machine` says where it was. `guest` takes in what the test bed has measured on the kernel's
//! RDMA devices, which is done elsewhere.

mod aims;
mod contender;
mod files;
mod guest;
mod machine;
mod neighbours;
mod page;
mod plan;
mod plots;
mod process;
mod results;
mod sshd;
mod svg;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use contender::Contender;
use exs_tools::fail::{During, Failure};
use exs_tools::{out, tell};
use machine::Machine;
use plan::Plan;
use results::{Entry, Section};

/// Measure EXS beside plain sockets and whatever neighbours are installed, and draw it.
#[derive(Debug, Parser)]
#[command(name = "exs-bench", version, max_term_width = 100)]
struct Args {
    /// Less than a minute: shows that everything runs, not how fast
    #[arg(long)]
    quick: bool,
    /// Where to write the JSON files, the plots and README.md [default: docs/bench, with --quick
    /// target/bench-quick]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// An address of this machine; one of an RDMA device lets verbs take part
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Rounds; the median of each contender counts [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Only these sections: bandwidth, latency, rate, connections, idle, files
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// A log of `make test-rdma SUITES=neighbours`, whose figures stand beside the others (once for
    /// each device); `-` is standard input
    #[arg(long, value_name = "FILE")]
    rdma_log: Vec<PathBuf>,
    /// Also put a summary into this file, between its marks `<!-- bench -->` and `<!-- /bench -->`;
    /// only of a whole run
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
}

fn main() -> ExitCode {
    out::main(|args: Args| out::failed(run(&args)))
}

fn run(args: &Args) -> Result<(), Failure> {
    let usual = if args.quick { "target/bench-quick" } else { "docs/bench" };
    let out = args.out.clone().unwrap_or_else(|| usual.into());
    fs::create_dir_all(&out).during(format!("cannot write to {}", out.display()))?;
    let plan = Plan::new(args.quick, args.rounds, args.address);
    let names: Vec<_> = plan.sections.iter().map(|s| s.id).chain(["files"]).collect();
    if let Some(odd) = args.only.iter().find(|o| !names.contains(&o.as_str())) {
        return Err(Failure(format!("there is no section {odd}: {}", names.join(", "))));
    }
    let wanted = |id: &str| args.only.is_empty() || args.only.iter().any(|o| o == id);
    let mut machine = Machine::look(args.quick)?;
    let (mut done, mut given_up) = (Vec::new(), Vec::new());
    for section in plan.sections.iter().filter(|s| wanted(s.id)) {
        done.push(measure(&plan, section, &mut given_up));
    }
    if wanted("files") {
        done.push(files::measure(&plan)?);
    }
    if !args.rdma_log.is_empty() {
        done.push(guest::read(&args.rdma_log)?);
    }
    machine.note_load_after();
    for section in &done {
        section.write(&out, &machine)?;
    }
    let plots = plots::draw(&done, &out)?;
    let page = page::text(&machine, &done, &plots);
    write(&out.join("README.md"), &page)?;
    if let Some(file) = args.summary.as_ref().filter(|_| !args.quick && args.only.is_empty()) {
        let text = fs::read_to_string(file).during(file.display())?;
        let summary = page::summary(&machine, &done, &plots, &page::way_from(file, &out));
        let text = page::between_marks(&text, &summary)
            .ok_or_else(|| Failure(format!("{} has no marks for a summary", file.display())))?;
        write(file, &text)?;
    }
    tell!("exs-bench: see {}", out.join("README.md").display());
    // A neighbour that is missing is no failure. A contender of EXS that does not run is one.
    let ours = done.iter().flat_map(Section::failures).filter(|(name, _)| name.starts_with("EXS"));
    let ours: Vec<_> = ours.map(|(name, why)| format!("{name}: {why}")).collect();
    if ours.is_empty() { Ok(()) } else { Err(Failure(ours.join("\n"))) }
}

/// One section: each round runs every contender once in every case.
///
/// A contender that has failed once would keep all others waiting in every round. So it takes no
/// more part: EXS in this section, a neighbour in all sections.
fn measure(plan: &Plan, section: &plan::Section, given_up: &mut Vec<Contender>) -> Section {
    let mut cases: Vec<_> = section.cases.iter().map(results::Case::new).collect();
    given_up.retain(|c| matches!(c, Contender::Other(_)));
    for round in 1..=plan.rounds_of(section) {
        for (case, result) in section.cases.iter().zip(&mut cases) {
            tell!("{} {}, round {round}", section.id, case.title);
            for contender in Contender::all().iter().filter(|c| c.takes_part(case, plan)) {
                let name = contender.name(case);
                if given_up.contains(contender) {
                    continue;
                }
                let entry: &mut Entry = result.entry(&name);
                match contender.measure(case, plan) {
                    Ok(sample) => entry.samples.push(sample),
                    Err(e) => {
                        entry.failure = Some(e.to_string());
                        given_up.push(*contender);
                    }
                }
            }
        }
    }
    Section::new(section.id, section.title, cases)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).during(format!("cannot write {}", path.display()))
}

/// How long one run may take beyond what was asked for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
