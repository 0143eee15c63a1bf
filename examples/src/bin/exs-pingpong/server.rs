//! The server: a thread for each client.

use std::net::{IpAddr, SocketAddr, TcpListener};

use exs::{Options, Socket, SocketType};
use exs_tools::fail::{During, Failure};
use exs_tools::peer::LISTENING;
use exs_tools::road::Road;
use exs_tools::{out, tell};

use crate::cli::MAX_SIZE;
use crate::control::{self, Job, Open, Reply, Request};
use crate::exs_link::ExsLink;
use crate::link::Link;
use crate::tcp_link::TcpLink;

/// What one client may have us set aside for a measurement.
const MAX_MEMORY: usize = 256 << 20;

pub(crate) fn serve(listen: SocketAddr, road: &Road, once: bool) -> Result<(), Failure> {
    let options = road.options();
    let listener = Socket::with_options(SocketType::Stream, options.clone()).during("socket")?;
    listener.bind(listen)?;
    listener.listen(64)?;
    out!("{LISTENING}{}", listener.local_addr().during("local address")?)?;
    loop {
        let (socket, peer) = listener.blocking().accept().during("accept")?;
        if once {
            return client(&socket, &options);
        }
        let options = options.clone();
        std::thread::spawn(move || {
            if let Err(e) = client(&socket, &options) {
                tell!("exs-pingpong: {peer}: {e}");
            }
        });
    }
}

/// Serves one client until it closes the control connection.
fn client(socket: &Socket, options: &Options) -> Result<(), Failure> {
    let here = socket.local_addr().during("local address")?.ip();
    let mut links: Vec<Box<dyn Link>> = Vec::new();
    while let Some(request) = control::recv(socket)? {
        let done = match request {
            Request::Open(open) => accept(socket, options, here, open).map(|link| links.push(link)),
            Request::Run { link, job } => match links.get_mut(link) {
                Some(link) => run(socket, link.as_mut(), &job),
                None => Err(Failure(format!("there is no link {link}"))),
            },
        };
        if let Err(e) = done {
            control::send(socket, &Reply::Failed { why: e.to_string() })?;
            return Err(e);
        }
    }
    Ok(())
}

/// Listens for one connection of the kind that is asked for.
fn accept(
    control: &Socket,
    options: &Options,
    here: IpAddr,
    open: Open,
) -> Result<Box<dyn Link>, Failure> {
    let any = SocketAddr::new(here, 0);
    match open {
        Open::Exs { kind, wait, crc } => {
            let options = options.clone().with_crc(options.crc | crc);
            let listener = Socket::with_options(kind.into(), options).during("socket")?;
            listener.bind(any)?;
            listener.listen(1)?;
            let port = listener.local_addr().during("local address")?.port();
            control::send(control, &Reply::Opened { port })?;
            let (socket, _) = listener.blocking().accept().during("accept")?;
            Ok(Box::new(ExsLink::new(socket, kind, wait)?))
        }
        Open::Tcp { spin } => {
            let listener = TcpListener::bind(any).during("TCP listener")?;
            let port = listener.local_addr().during("local address")?.port();
            control::send(control, &Reply::Opened { port })?;
            let (stream, _) = listener.accept().during("TCP accept")?;
            Ok(Box::new(TcpLink::new(stream, spin)?))
        }
    }
}

fn run(control: &Socket, link: &mut dyn Link, job: &Job) -> Result<(), Failure> {
    let depth = job.depth as usize;
    let fits = (1..=64).contains(&depth)
        && (1..=MAX_SIZE).contains(&job.size)
        && job.size.saturating_mul(depth.max(4)) <= MAX_MEMORY;
    if !fits || job.iters == 0 {
        return Err(Failure(format!("{job:?} is more than this server takes on")));
    }
    link.serve(job, &mut || control::send(control, &Reply::Ready))?;
    control::send(control, &Reply::Done)
}

/// The client's side of [`accept`].
pub(crate) fn open_link(
    control: &Socket,
    options: &Options,
    server: SocketAddr,
    open: Open,
) -> Result<(Box<dyn Link>, String), Failure> {
    control::send(control, &Request::Open(open))?;
    let addr = match control::recv(control)? {
        Some(Reply::Opened { port }) => {
            // It keeps the interface of a link-local address.
            let mut addr = server;
            addr.set_port(port);
            addr
        }
        other => return Err(unexpected(other)),
    };
    match open {
        Open::Exs { kind, wait, crc } => {
            let options = options.clone().with_crc(options.crc | crc);
            let socket = Socket::with_options(SocketType::from(kind), options).during("socket")?;
            socket.blocking().connect(addr)?;
            let name = socket.transport().map_or_else(String::new, |route| route.to_string());
            Ok((Box::new(ExsLink::new(socket, kind, wait)?), name))
        }
        Open::Tcp { spin } => {
            let stream = std::net::TcpStream::connect(addr).during("TCP connect")?;
            Ok((Box::new(TcpLink::new(stream, spin)?), "tcp".to_owned()))
        }
    }
}

pub(crate) fn unexpected(reply: Option<Reply>) -> Failure {
    match reply {
        Some(Reply::Failed { why }) => Failure(format!("the server: {why}")),
        Some(reply) => Failure(format!("the server answered {reply:?} out of turn")),
        None => Failure("the server has closed the connection".to_owned()),
    }
}
