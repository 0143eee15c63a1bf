//! Connections that are tried: within this process by each transport that this host has, and to an
//! address that the user gives.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use exs::{Options, Socket, SocketStream, SocketType, Transport};
use exs_tools::frame;

use super::host::{Host, Outcome, Try};
use super::serve::{self, BULK, Greeting};

/// A connect that takes longer has failed.
const CONNECT: Duration = Duration::from_secs(5);
/// A server that says nothing for this time is no `exs-info --doctor --serve`.
const SILENCE: Duration = Duration::from_secs(2);
/// A mebibyte that takes longer does not pass.
const PASSAGE: Duration = Duration::from_secs(10);

/// By shared memory and by the software RNIC on the loopback, and by each device to its own address.
pub(super) fn within(host: &Host, options: &Options) -> Vec<Try> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut ways: Vec<(Transport, Option<String>, IpAddr)> = Vec::new();
    if !host.insists {
        ways.push((Transport::Shm, None, loopback));
        ways.push((Transport::Soft, None, loopback));
    }
    for device in host.devices.iter().filter(|d| d.found) {
        let wanted = options.device.as_ref().is_none_or(|d| *d == device.name);
        let up = device.ports.iter().any(|p| p.state == "ACTIVE");
        let addr = device.addresses.iter().find_map(|a| a.parse().ok());
        if let Some(addr) = addr.filter(|_| wanted && up) {
            ways.push((Transport::Verbs, Some(device.name.clone()), addr));
        }
    }
    // A user that pins a transport asks for no other.
    let pinned = options.transport;
    ways.retain(|(t, ..)| pinned == Transport::Auto || pinned == *t);
    ways.into_iter().map(|(t, device, ip)| itself(t, device, ip, options)).collect()
}

/// A connection to a listener of this process.
fn itself(transport: Transport, device: Option<String>, ip: IpAddr, options: &Options) -> Try {
    let options = by(transport, device.as_deref(), options);
    let outcome = match serve::listen_at(SocketAddr::new(ip, 0), &options) {
        Err(e) => Outcome::Fails(e.to_string()),
        Ok((listener, addr)) => {
            // It ends with the connection, or with the listener if none comes.
            let server = std::thread::spawn({
                let listener = listener.clone();
                move || listener.blocking().accept().map(|(socket, _)| serve::client(socket))
            });
            let outcome = attempt(addr, &options);
            if matches!(outcome, Outcome::Fails(_)) {
                listener.abort();
            }
            drop(listener);
            // Its errors show at this end, too.
            let _ = server.join();
            outcome
        }
    };
    Try { transport: transport.to_string(), device, to: ip.to_string(), asked: false, outcome }
}

/// Each way that EXS would try to `addr`.
///
/// # Errors
/// EXS cannot start.
pub(super) fn to(addr: SocketAddr, options: &Options) -> Result<Vec<Try>, String> {
    let ways = exs::explain(addr, options).map_err(|e| e.to_string())?;
    let mut tries = Vec::new();
    for way in ways {
        let outcome = match way.usable {
            true => attempt(addr, &by(way.transport, way.device.as_deref(), options)),
            // What the host cannot use matters to a user that insists on it.
            false if options.transport == way.transport => Outcome::Fails(way.reason),
            false => continue,
        };
        let (transport, to) = (way.transport.to_string(), addr.to_string());
        tries.push(Try { transport, device: way.device, to, asked: true, outcome });
    }
    Ok(tries)
}

fn by(transport: Transport, device: Option<&str>, options: &Options) -> Options {
    let device = device.filter(|_| transport == Transport::Verbs).map(str::to_owned);
    options
        .clone()
        .with_transport(transport)
        .with_device(device)
        .with_connect_timeout(CONNECT)
        .with_linger(SILENCE)
}

fn attempt(addr: SocketAddr, options: &Options) -> Outcome {
    let connected = Socket::with_options(SocketType::Stream, options.clone())
        .and_then(|socket| socket.blocking().connect(addr).map(|()| socket));
    let mut stream = match connected {
        Ok(socket) => SocketStream::from(socket),
        Err(e) => return Outcome::Fails(e.to_string()),
    };
    let limits = |time| {
        stream.set_read_timeout(Some(time)).and_then(|()| stream.set_write_timeout(Some(time)))
    };
    if let Err(e) = limits(SILENCE) {
        return Outcome::Fails(e.to_string());
    }
    let Ok(Some(greeting)) = frame::recv::<Greeting>(&mut stream, "exs-info") else {
        return Outcome::Connects;
    };
    let began = Instant::now();
    match there_and_back(&mut stream) {
        Ok(()) => {
            let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            Outcome::Carries { version: greeting.version, micros }
        }
        Err(e) if e.kind() == ErrorKind::TimedOut => Outcome::Stalls(e.to_string()),
        Err(e) => Outcome::Fails(e.to_string()),
    }
}

fn there_and_back(stream: &mut SocketStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PASSAGE)).map_err(std::io::Error::other)?;
    stream.set_write_timeout(Some(PASSAGE)).map_err(std::io::Error::other)?;
    let sent: Vec<u8> = (0..=u8::MAX).cycle().take(BULK).collect();
    let mut back = vec![0; BULK];
    stream.write_all(&sent)?;
    stream.read_exact(&mut back)?;
    match sent == back {
        true => Ok(()),
        false => Err(std::io::Error::other("other bytes came back than were sent")),
    }
}
