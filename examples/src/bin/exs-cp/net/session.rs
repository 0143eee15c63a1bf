//! How two sides meet: hello, proofs, then one request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use exs::Host;
use exs_tools::road::Road;

use super::channel::Channel;
use super::pipe::{Pipe, Via};
use crate::auth::{self, Role, Secret};
use crate::error::CpError;
use crate::wire::codec::WireError;
use crate::wire::frame::{Frame, VERSION};

/// How long a client may take until it has proved itself, and a server for each step.
const STEP: Duration = Duration::from_secs(10);
/// How long a peer may take to read why it is refused.
const FAREWELL: Duration = Duration::from_secs(5);
/// Milliseconds that a client waits before each new attempt, after a server has dropped it before
/// its proof. A server does so while many peers without a proof crowd there.
const AGAIN: [u64; 4] = [50, 200, 800, 2000];

/// Connects to one server, as often as needed.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) host: Host,
    pub(crate) secret: Option<Secret>,
    pub(crate) road: Road,
    /// The transports that have carried the connections.
    pub(crate) via: Arc<Via>,
    pub(crate) stop: Arc<AtomicBool>,
}

/// Resolves what the user typed; at least one address.
pub(crate) fn resolve(text: &str) -> Result<Vec<SocketAddr>, CpError> {
    let found = exs_tools::address::all(text).map_err(CpError::Usage)?;
    if found.is_empty() {
        return Err(CpError::Usage(format!("`{text}` has no address")));
    }
    Ok(found)
}

impl Dialer {
    /// Connects, proves, checks the proof, and makes the request.
    pub(crate) fn open(&self, request: &Frame) -> Result<Channel, CpError> {
        let mut pauses = AGAIN.iter();
        let mut ch = loop {
            match (self.meet(), pauses.next()) {
                (Err(CpError::Lost { .. }), Some(pause)) => {
                    // sleep-ok: the server has too many callers, and this spreads them.
                    std::thread::sleep(Duration::from_millis(*pause));
                }
                (met, _) => break met?,
            }
        };
        ch.send(request)?;
        ch.flush()?;
        Ok(ch)
    }

    /// Connects, and exchanges proofs.
    fn meet(&self) -> Result<Channel, CpError> {
        let (pipe, peer) = self.connect()?;
        self.via.note(&pipe);
        let mut ch = Channel::new(pipe, peer, Arc::clone(&self.stop))?;
        self.greet(&mut ch)?;
        Ok(ch)
    }

    /// Connects to the first address of the host that answers.
    fn connect(&self) -> Result<(Pipe, String), CpError> {
        let pipe = Pipe::connect(&self.host, &self.road, &self.stop)
            .map_err(|cause| CpError::Connect { cause })?;
        let peer = pipe.peer();
        Ok((pipe, peer))
    }

    fn greet(&self, ch: &mut Channel) -> Result<(), CpError> {
        let mine = auth::nonce()?;
        let token = self.secret.is_some();
        ch.send(&Frame::Hello { version: VERSION, token, nonce: mine })?;
        // A refusal before the server's hello cannot be about the token.
        let theirs = match ch.frame_within(Some(STEP))? {
            Frame::Refuse { text } => {
                return Err(CpError::Refused { peer: ch.peer().to_owned(), reason: text });
            }
            Frame::Hello { token: wanted, nonce, .. } => {
                self.agree(ch.peer(), wanted)?;
                nonce
            }
            other => return Err(unexpected(&other)),
        };
        if let Some(secret) = &self.secret {
            ch.send(&Frame::Proof(secret.prove(Role::Client, &mine, &theirs)))?;
            match answer(ch)? {
                Frame::Proof(p) if secret.check(Role::Server, &mine, &theirs, &p) => {}
                Frame::Proof(_) => {
                    return Err(CpError::Auth(format!(
                        "{} does not know the token: nothing was sent to it",
                        ch.peer()
                    )));
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    fn agree(&self, peer: &str, wanted: bool) -> Result<(), CpError> {
        match (wanted, self.secret.is_some()) {
            (true, false) => Err(CpError::Auth(format!(
                "{peer} asks for a token: give the same file that it was started with, --token-file FILE"
            ))),
            (false, true) => Err(CpError::Auth(format!(
                "{peer} has no token, so it cannot prove who it is: \
                 start it with --token-file FILE, or leave the option off here"
            ))),
            _ => Ok(()),
        }
    }
}

/// The answer to our proof; a refusal becomes its reason.
fn answer(ch: &mut Channel) -> Result<Frame, CpError> {
    match ch.frame_within(Some(STEP))? {
        Frame::Refuse { text } => Err(CpError::Auth(format!("{} refused: {text}", ch.peer()))),
        frame => Ok(frame),
    }
}

pub(crate) fn unexpected(frame: &Frame) -> CpError {
    // Its name only: a frame's fields are the peer's, and may be long.
    let text = format!("{frame:?}");
    let name: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
    CpError::Protocol(format!("a {name} frame where none belongs"))
}

/// The server's side; returns the request of a peer that has proved itself: by a proof where there
/// is a token, else by a valid request. Calls `prove` at that moment, to get a place for the peer.
pub(crate) fn welcome(
    ch: &mut Channel,
    secret: Option<&Secret>,
    prove: impl FnOnce() -> Result<(), CpError>,
) -> Result<Frame, CpError> {
    // One limit for all steps, so that slow steps gain a stranger no time.
    let by = Some((Instant::now() + STEP, STEP));
    ch.set_idle(STEP);
    let greeted = greet_client(ch, secret, by);
    if let Err(e @ (CpError::Auth(_) | CpError::Wire(WireError::Version(_)))) = &greeted {
        refuse(ch, e.to_string())?;
    }
    greeted?;
    if secret.is_some() {
        prove()?;
        return ch.frame_within(Some(STEP));
    }
    let request = ch.frame_by(by)?;
    match request {
        Frame::List { .. } | Frame::Walk { .. } | Frame::Put { .. } | Frame::Fetch { .. } => {
            prove()?;
            Ok(request)
        }
        other => Err(unexpected(&other)),
    }
}

fn greet_client(
    ch: &mut Channel,
    secret: Option<&Secret>,
    by: Option<(Instant, Duration)>,
) -> Result<(), CpError> {
    let theirs = match ch.frame_by(by)? {
        Frame::Hello { nonce, .. } => nonce,
        other => return Err(unexpected(&other)),
    };
    let mine = auth::nonce()?;
    ch.send(&Frame::Hello { version: VERSION, token: secret.is_some(), nonce: mine })?;
    let Some(secret) = secret else { return Ok(()) };
    match ch.frame_by(by)? {
        Frame::Proof(p) if secret.check(Role::Client, &theirs, &mine, &p) => {
            ch.send(&Frame::Proof(secret.prove(Role::Server, &theirs, &mine)))
        }
        Frame::Proof(_) => {
            Err(CpError::Auth("the token is wrong; use the same token file on both sides".into()))
        }
        _ => Err(CpError::Auth("a token is needed (--token-file)".into())),
    }
}

/// Says why, and ends the connection in good order: a channel that is only dropped
/// aborts, and the reason would be lost with what had not arrived. The peer may be gone,
/// and has little time to take it.
pub(crate) fn refuse(ch: &mut Channel, text: String) -> Result<(), CpError> {
    ch.set_idle(FAREWELL);
    ch.send(&Frame::Refuse { text }).and_then(|()| ch.hang_up())
}
