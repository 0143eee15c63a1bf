//! `SocketStream` under code that knows nothing of EXS: rustls, tungstenite and `std::io`.

use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use exs::{Options, Socket, SocketStream, SocketType, Transport};
use exs_tests::harness::stream_pair;
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

/// A connection: the end that connected, and the end that accepted.
fn pair(transport: Transport) -> (SocketStream, SocketStream) {
    let (client, server) = stream_pair(&Options::new().with_transport(transport));
    (client.into(), server.into())
}

const TRANSPORTS: [Transport; 2] = [Transport::Soft, Transport::Shm];

/// A certificate that signs itself, and what trusts it.
fn tls() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let made = rcgen::generate_simple_self_signed(["exs.test".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    (Arc::new(client), Arc::new(server))
}

#[test]
fn rustls_owns_a_socket_at_each_end() {
    const SIZE: usize = 3 << 20;
    let (for_client, for_server) = tls();
    for transport in TRANSPORTS {
        let (client, server) = pair(transport);
        let session = ServerConnection::new(Arc::clone(&for_server)).unwrap();
        let server = thread::spawn(move || {
            let mut tls = rustls::StreamOwned::new(session, server);
            let mut question = String::new();
            BufReader::new(&mut tls).read_line(&mut question).unwrap();
            assert_eq!(question, "how many bytes?\n");
            let answer: Vec<u8> = (0..=250).cycle().take(SIZE).collect();
            tls.write_all(&answer).unwrap();
            tls.conn.send_close_notify();
            tls.flush().unwrap();
        });
        let name = ServerName::try_from("exs.test").unwrap();
        let session = ClientConnection::new(Arc::clone(&for_client), name).unwrap();
        let mut tls = rustls::StreamOwned::new(session, client);
        tls.write_all(b"how many bytes?\n").unwrap();
        let mut answer = Vec::new();
        tls.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), SIZE);
        assert!(answer.iter().enumerate().all(|(i, b)| usize::from(*b) == i % 251));
        server.join().unwrap();
    }
}

#[test]
fn tls_refuses_a_certificate_that_it_does_not_know() {
    let (_, for_server) = tls();
    let (for_client, _) = tls();
    let (client, server) = pair(Transport::Auto);
    let session = ServerConnection::new(for_server).unwrap();
    let server = thread::spawn(move || {
        let mut tls = rustls::StreamOwned::new(session, server);
        tls.read(&mut [0; 1]).unwrap_err()
    });
    let name = ServerName::try_from("exs.test").unwrap();
    let session = ClientConnection::new(for_client, name).unwrap();
    let mut tls = rustls::StreamOwned::new(session, client);
    let refused = tls.write_all(b"hello").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidData, "{refused}");
    drop(tls);
    server.join().unwrap();
}

#[test]
fn tungstenite_talks_over_a_socket() {
    for transport in TRANSPORTS {
        let (client, server) = pair(transport);
        let server = thread::spawn(move || {
            let mut web = tungstenite::accept(server).unwrap();
            while let Ok(message) = web.read() {
                if message.is_binary() {
                    web.send(message).unwrap();
                }
            }
        });
        let (mut web, _) = tungstenite::client("ws://exs.test/", client).unwrap();
        for len in [0, 1, 100_000] {
            web.send(vec![7u8; len].into()).unwrap();
            assert_eq!(web.read().unwrap().into_data(), vec![7u8; len]);
        }
        web.close(None).unwrap();
        while web.read().is_ok() {}
        server.join().unwrap();
    }
}

#[test]
fn one_thread_reads_while_another_writes() {
    let (client, server) = pair(Transport::Auto);
    let echo = thread::spawn(move || std::io::copy(&mut &server, &mut &server).unwrap());
    let mut out = client.try_clone().unwrap();
    let writer = thread::spawn(move || {
        let (front, back) = ([1u8; 3000], [2u8; 4000]);
        let n = out.write_vectored(&[IoSlice::new(&front), IoSlice::new(&back)]).unwrap();
        assert_eq!(n, 7000, "short slices leave together");
        out.write_all(&[3; 100_000]).unwrap();
        out.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    (&client).read_to_end(&mut got).unwrap();
    assert_eq!(got, [vec![1; 3000], vec![2; 4000], vec![3; 100_000]].concat());
    writer.join().unwrap();
    assert_eq!(echo.join().unwrap(), 107_000);
}

#[test]
fn a_read_ends_with_its_time_and_a_write_says_how_much_left() {
    let options = Options::new().with_transport(Transport::Soft).with_ring_size(64 << 10);
    let listener = Socket::with_options(SocketType::Stream, options.clone()).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let client = Socket::with_options(SocketType::Stream, options).unwrap();
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    let (mut client, mut server) = (SocketStream::from(client), SocketStream::from(server));

    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(client.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(client.read(&mut []).unwrap(), 0, "it has nothing to wait for");

    // The peer does not read, and its ring has no room for all of it.
    client.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let sent = client.write(&vec![5; 16 << 20]).unwrap();
    assert!(sent > 0 && sent < 16 << 20, "{sent}");
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got, vec![5; sent]);
}
