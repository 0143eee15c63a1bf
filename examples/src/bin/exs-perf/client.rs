//! The client: decides what is measured.

use std::time::Duration;

use exs_tools::fail::{During, Failure};
use exs_tools::peer::Server;
use quanta::Instant;

use crate::cli::{Path, Run};
use crate::control::{Control, Reply, Request, unexpected};
use crate::crew::Crew;
use crate::job::{Job, Test};
use crate::links::connect;
use crate::report::{Record, Report, Run as Figures};
use crate::usage::{Since, allow_connections};

pub(crate) fn run(test: Test, args: &Run) -> Result<(), Failure> {
    let (mut control, server) = call(&args.server)?;
    let mut report = Report::new(args.load.json);
    for size in args.load.sizes(test.usual_size()) {
        let job = Job {
            size,
            depth: args.load.depth.unwrap_or(test.usual_depth()),
            connections: args.connections,
            threads: args.threads,
            ..job(test, &args.path)
        };
        let record = measure(&mut control, &job.fit(), args.load.duration)?;
        report.print(&record)?;
    }
    end(control, server)
}

/// What the command line says of the connections.
pub(crate) fn job(test: Test, path: &Path) -> Job {
    let usual = Job::new(test);
    Job {
        way: path.transport.unwrap_or(usual.way),
        device: path.device.clone().or(usual.device),
        wait: path.poll,
        kind: path.socket,
        crc: path.crc,
        ..usual
    }
}

/// Calls the server; `demo` is one that is started for it.
pub(crate) fn call(server: &str) -> Result<(Control, Option<Server>), Failure> {
    if server == "demo" {
        let words = ["serve", "--listen", "127.0.0.1:0", "--once"];
        let demo = Server::start(&words, |_| {}).during("cannot start the server")?;
        return Ok((Control::call(&demo.addr().to_string())?, Some(demo)));
    }
    Ok((Control::call(server)?, None))
}

/// Ends the control connection, and with it a server of our own.
pub(crate) fn end(control: Control, server: Option<Server>) -> Result<(), Failure> {
    drop(control);
    match server.map(|mut s| s.wait(Duration::from_secs(10))) {
        Some(false) => Err(Failure("the server did not end well".to_owned())),
        _ => Ok(()),
    }
}

/// One run with a server of our own.
pub(crate) fn once(job: &Job, duration: Duration) -> Result<Record, Failure> {
    let (mut control, server) = call("demo")?;
    let record = measure(&mut control, job, duration)?;
    end(control, server)?;
    Ok(record)
}

/// One run.
fn measure(control: &mut Control, job: &Job, duration: Duration) -> Result<Record, Failure> {
    job.check()?;
    allow_connections(job.connections)?;
    control.send(&Request::Run(job.clone()))?;
    let place = match control.reply()? {
        Reply::Opened(place) => place,
        other => return Err(unexpected(&other)),
    };
    let (_, server) = control.addrs()?;
    let done = (|| {
        let links = connect(job, server, &place, || Ok(()))?;
        let (route, transport) = (links.route(job.way), links.transport(job.way));
        let crew = Crew::start(links.parts(job, true)?)?;
        Ok((route, transport, crew))
    })();
    let (route, transport, crew) = done.map_err(|e| control.blame(e))?;
    match control.reply()? {
        Reply::Warm => control.send(&Request::Go)?,
        other => return Err(unexpected(&other)),
    }
    match control.reply()? {
        Reply::Going => {}
        other => return Err(unexpected(&other)),
    }
    let since = Since::now(job.way.is_plain())?;
    let begun = Instant::now();
    let outcomes = crew.go(Some(begun + duration)).map_err(|e| control.blame(e))?;
    let local = since.usage(&outcomes)?;
    match control.reply()? {
        Reply::Done(remote) => {
            Record::new(job, Figures { route, transport, begun, outcomes, local, remote })
        }
        other => Err(unexpected(&other)),
    }
}
