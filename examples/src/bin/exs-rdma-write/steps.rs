//! The steps of both sides.

use std::net::SocketAddr;

use exs::{
    EventKind, EventQueue, Host, MemoryRegion, RecvFlags, RemoteBuffer, Rights, Socket, SocketType,
    Token,
};
use exs_tools::fail::{During, Failure};
use exs_tools::out::Lost;
use exs_tools::peer::LISTENING;
use exs_tools::{out, tell};

/// Room for the string in the client's buffer.
const ROOM: usize = 4096;

/// Prints a step: the EXS call, what it is in verbs, and what came out.
fn step(side: &str, call: &str, verbs: &str, note: &str) -> Result<(), Lost> {
    out!("[{side}] {call:<26} {verbs}")?;
    if note.is_empty() {
        return Ok(());
    }
    out!("{:>width$} {note}", "->", width = side.len() + 5)
}

/// Waits for the one event that is due, and prints it as the work completion it is.
fn completion(side: &str, queue: &EventQueue, wc: &str) -> Result<exs::Event, Failure> {
    let event = queue.next().during("waiting for an event")?;
    if let Some(error) = event.error() {
        return Err(Failure(format!("{:?} failed: {error}", event.kind())));
    }
    let note = format!("wr_id {}, status IBV_WC_SUCCESS, {} bytes", event.token().0, event.bytes());
    step(side, "queue.next()", &format!("ibv_poll_cq: a WC ({wc})"), &note)?;
    Ok(event)
}

/// Names of the work requests: verbs call them wr_id, EXS calls them tokens.
const CONNECT: Token = Token(1);
const DESCRIPTOR: Token = Token(2);
const MESSAGE: Token = Token(3);
const WRITE: Token = Token(4);
const REVOKE: Token = Token(5);

fn new_socket(side: &str) -> Result<Socket, Failure> {
    let socket = Socket::new(SocketType::SeqPacket).during("Socket::new")?;
    step(
        side,
        "Socket::new(SeqPacket)",
        "ibv_open_device, ibv_alloc_pd: the device and a protection domain (PD)",
        "the software RNIC stands in where there is no device",
    )?;
    Ok(socket)
}

fn new_queue(side: &str) -> Result<EventQueue, Failure> {
    let queue = EventQueue::new(16).during("EventQueue::new")?;
    step(
        side,
        "EventQueue::new(16)",
        "ibv_create_comp_channel, ibv_create_cq: a completion queue (CQ)",
        "",
    )?;
    Ok(queue)
}

/// The client's connection, and where its events come.
fn connected(side: &str, server: &Host) -> Result<(Socket, EventQueue), Failure> {
    let (socket, queue) = (new_socket(side)?, new_queue(side)?);

    step(
        side,
        "socket.connect",
        "rdma_connect: ibv_create_qp (RESET), ibv_modify_qp to INIT, RTR, RTS",
        "",
    )?;
    socket.connect_host(&queue, CONNECT, server)?;
    completion(side, &queue, "RDMA_CM_EVENT_ESTABLISHED")?;
    Ok((socket, queue))
}

/// The client: lends its memory.
pub(crate) fn client(server: &Host) -> Result<(), Failure> {
    let side = "client";
    let (socket, queue) = connected(side, server)?;

    let region = MemoryRegion::new(ROOM).during("MemoryRegion::new")?;
    let buffer = region.buffer(..).during("leasing the region")?;
    step(
        side,
        "MemoryRegion::new",
        "ibv_reg_mr: a memory region (MR), pinned and with an lkey",
        "",
    )?;

    let export = socket.export(buffer, Rights::WRITE, None).during("export")?;
    let remote = export.descriptor();
    step(
        side,
        "socket.export(WRITE)",
        "ibv_bind_mw: a memory window with IBV_ACCESS_REMOTE_WRITE, on this QP only",
        &format!("addr {:#x}, length {}, rkey {:#010x}", remote.addr(), remote.len(), remote.key()),
    )?;

    // Posted before the descriptor leaves, as the answer may be quick.
    socket.recv(&queue, MESSAGE, vec![0; 64], RecvFlags::NONE).during("recv")?;
    step(side, "socket.recv", "ibv_post_recv: a receive WR for the server's message", "")?;
    socket.send(&queue, DESCRIPTOR, remote.to_bytes()).during("sending the descriptor")?;
    step(
        side,
        "socket.send(descriptor)",
        "ibv_post_send, IBV_WR_SEND: how the server learns addr and rkey",
        "",
    )?;

    let mut told = None;
    while told.is_none() {
        let event = completion(side, &queue, "IBV_WC_SEND or IBV_WC_RECV")?;
        if event.kind() == EventKind::Recv {
            told = Some(length(event)?);
        }
    }
    let told = told.unwrap_or(0);

    let mut text = vec![0; told.min(ROOM)];
    export.read_at(0, &mut text).during("reading the memory")?;
    step(
        side,
        "export.read_at",
        "(plain memory access: the bytes are simply there)",
        &format!("\"{}\"", String::from_utf8_lossy(&text)),
    )?;

    export.revoke(&queue, REVOKE).map_err(|r| r.error).during("revoke")?;
    step(
        side,
        "export.revoke",
        "ibv_post_send, IBV_WR_LOCAL_INV: the rkey is worth nothing from now on",
        "",
    )?;
    completion(side, &queue, "IBV_WC_LOCAL_INV")?;
    socket.blocking().close().during("close")?;
    step(side, "socket.close", "rdma_disconnect, ibv_destroy_qp", "")?;
    Ok(())
}

/// The length that the server's message tells.
fn length(event: exs::Event) -> Result<usize, Failure> {
    let (n, eof) = (event.bytes(), event.eof());
    let message = event.into_buffer().unwrap_or_else(|| Vec::new().into());
    let text = std::str::from_utf8(&message[..n]).unwrap_or("");
    match text.strip_prefix("written: ").and_then(|n| n.parse().ok()) {
        Some(n) => Ok(n),
        None if eof => {
            Err(Failure("the server closed the connection before it wrote anything".to_owned()))
        }
        None => Err(Failure(format!("the server said something unexpected: {text:?}"))),
    }
}

/// The server: takes clients one after the other, and writes to each.
pub(crate) fn serve(listen: SocketAddr, text: &str, once: bool) -> Result<(), Failure> {
    if text.is_empty() || text.len() > ROOM {
        return Err(Failure(format!("--text must have 1 to {ROOM} bytes, not {}", text.len())));
    }
    let side = "server";
    let listener = new_socket(side)?;
    listener.bind(listen)?;
    listener.listen(16)?;
    step(side, "socket.listen", "rdma_bind_addr, rdma_listen", "")?;
    out!("[{side}] {LISTENING}{}", listener.local_addr().during("local_addr")?)?;
    loop {
        let (socket, peer) = listener.blocking().accept().during("accept")?;
        step(
            side,
            "socket.accept",
            "rdma_accept: ibv_create_qp (RESET), ibv_modify_qp to INIT, RTR, RTS",
            &format!("from {peer}"),
        )?;
        match write_to(side, &socket, text) {
            Err(e) if !once => tell!("exs-rdma-write: {peer}: {e}"),
            other if once => return other,
            _ => {}
        }
    }
}

/// One client. It has a queue of its own, so that what a lost client leaves behind does
/// not come up with the next one.
fn write_to(side: &str, socket: &Socket, text: &str) -> Result<(), Failure> {
    let queue = &new_queue(side)?;
    socket.recv(queue, DESCRIPTOR, vec![0; RemoteBuffer::BYTES], RecvFlags::NONE).during("recv")?;
    step(side, "socket.recv", "ibv_post_recv: a receive WR for the client's descriptor", "")?;
    let event = completion(side, queue, "IBV_WC_RECV")?;
    let n = event.bytes();
    let bytes = event.into_buffer().unwrap_or_else(|| Vec::new().into());
    let remote = RemoteBuffer::from_bytes(&bytes[..n]).during("the client's descriptor")?;
    step(
        side,
        "RemoteBuffer::from_bytes",
        "what goes to wr.rdma.remote_addr and wr.rdma.rkey",
        &format!("addr {:#x}, length {}, rkey {:#010x}", remote.addr(), remote.len(), remote.key()),
    )?;

    socket.write(queue, WRITE, &remote, 0, text.to_owned()).during("write")?;
    step(
        side,
        "socket.write",
        "ibv_post_send, IBV_WR_RDMA_WRITE: straight into the client's memory",
        "",
    )?;
    completion(side, queue, "IBV_WC_RDMA_WRITE")?;

    let message = format!("written: {}", text.len());
    socket.send(queue, MESSAGE, message).during("send")?;
    step(
        side,
        "socket.send(message)",
        "ibv_post_send, IBV_WR_SEND: a WRITE alone tells the client nothing",
        "",
    )?;
    completion(side, queue, "IBV_WC_SEND")?;
    socket.blocking().close().during("close")?;
    step(side, "socket.close", "rdma_disconnect, ibv_destroy_qp", "")?;
    Ok(())
}
