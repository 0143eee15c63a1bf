//! The server: one client at a time, as two would measure each other.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use exs_tools::fail::{During, Failure};
use exs_tools::peer::LISTENING;
use exs_tools::{out, tell};

use crate::cli::Serve;
use crate::control::{Control, Reply, Request};
use crate::crew::Crew;
use crate::job::{Job, Test};
use crate::links::{Links, Listener};
use crate::usage::{Since, allow_connections, resident};

pub(crate) fn serve(args: &Serve) -> Result<(), Failure> {
    let listener =
        TcpListener::bind(args.listen).during(format!("cannot listen on {}", args.listen))?;
    out!("{LISTENING}{}", listener.local_addr().during("local address")?)?;
    if args.once {
        let (stream, _) = listener.accept().during("accept")?;
        return client(stream);
    }
    let turnstile = Arc::new(Turnstile::default());
    loop {
        let (stream, peer) = listener.accept().during("accept")?;
        let turnstile = Arc::clone(&turnstile);
        // A thread for each, so that a client that comes while another one is served is told so.
        std::thread::spawn(move || {
            let served = match turnstile.enter() {
                Some(_inside) => client(stream),
                None => refuse(stream),
            };
            if let Err(e) = served {
                tell!("exs-perf: {peer}: {e}");
            }
        });
    }
}

/// How long a client waits for the one before. A user that starts two in a row is not refused
/// because the server has not seen the end of the first yet.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lets one in at a time.
#[derive(Default)]
struct Turnstile {
    taken: Mutex<bool>,
    left: Condvar,
}

/// Inside, while this lives.
struct Inside<'a>(&'a Turnstile);

impl Turnstile {
    /// None: the one before is still there.
    fn enter(&self) -> Option<Inside<'_>> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.left.wait_timeout_while(taken, PATIENCE, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *taken, true) { None } else { Some(Inside(self)) }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.left.notify_one();
    }
}

fn refuse(stream: TcpStream) -> Result<(), Failure> {
    let mut control = Control::greet(stream)?;
    let _: Option<Request> = control.recv()?;
    let why = "it serves another client now; try again when that is done".to_owned();
    control.send(&Reply::Failed { why })
}

/// Serves one client until it closes the control connection.
fn client(stream: TcpStream) -> Result<(), Failure> {
    let mut control = Control::greet(stream)?;
    control.limit(None)?;
    while let Some(request) = control.recv()? {
        let done = match request {
            Request::Run(job) => run(&mut control, &job).and_then(|()| control.limit(None)),
            Request::Go => Err(Failure("nothing is ready to go".to_owned())),
        };
        if let Err(e) = done {
            control.send(&Reply::Failed { why: e.to_string() })?;
            return Err(e);
        }
    }
    Ok(())
}

fn run(control: &mut Control, job: &Job) -> Result<(), Failure> {
    job.check()?;
    allow_connections(job.connections)?;
    let (here, _) = control.addrs()?;
    let (listener, place) = Listener::new(job, here)?;
    control.send(&Reply::Opened(place))?;
    let mut before = 0;
    // The listener stays open, as a server's does.
    let links = listener.accept(job, control, || {
        before = resident()?;
        Ok(())
    })?;
    if job.test == Test::Idle {
        return idle(control, &links, before);
    }
    let crew = Crew::start(links.parts(job, false)?)?;
    control.send(&Reply::Warm)?;
    // Between its runs a client may take its time.
    control.limit(Some(job.patience()))?;
    match control.recv()? {
        Some(Request::Go) => {}
        Some(other) => return Err(Failure(format!("{other:?} comes out of turn"))),
        None => return Err(Failure("the client has gone before it began".to_owned())),
    }
    let since = Since::now(job.way.is_plain())?;
    control.send(&Reply::Going)?;
    let outcomes = crew.go(None)?;
    control.send(&Reply::Done(since.usage(&outcomes)?))
}

/// Keeps the connections until the client has seen what they cost.
fn idle(control: &mut Control, links: &Links, before: u64) -> Result<(), Failure> {
    control.send(&Reply::Idle { before, after: resident()? })?;
    let end: Option<Request> = control.recv()?;
    match end {
        None => Ok(()),
        Some(other) => {
            Err(Failure(format!("{other:?} comes while {} connections idle", links.len())))
        }
    }
}
