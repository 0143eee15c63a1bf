//! redis-rs over EXS: against the small server of the examples, and against Redis itself behind the
//! proxy, where it is installed.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use exs::aio::{AsyncListener, AsyncStream};
use exs::{Options, Transport};
use exs_async_examples::resp::Database;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncCommands, AsyncConnectionConfig, ProtocolVersion, PushKind, RedisConnectionInfo};
use tokio_stream::StreamExt;

/// Both transports that every host has.
const EACH: [Transport; 2] = [Transport::Soft, Transport::Shm];

fn server(transport: Transport) -> SocketAddr {
    let options = Options::default().with_transport(transport);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = AsyncListener::bind_with(any, options).unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(Database::default().serve(listener));
    addr
}

async fn stream(addr: SocketAddr, transport: Transport) -> AsyncStream {
    let options = Options::default().with_transport(transport);
    AsyncStream::connect_with(addr, options).await.unwrap()
}

/// A client, whose connection a task moves.
async fn client(addr: SocketAddr, transport: Transport) -> MultiplexedConnection {
    let info = RedisConnectionInfo::default();
    // The largest values take longer than the default of half a second on a busy host.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
    let stream = stream(addr, transport).await;
    let (client, connection) =
        MultiplexedConnection::new_with_config(&info, stream, config).await.unwrap();
    tokio::spawn(connection);
    client
}

/// What a client does with any server.
async fn use_it(addr: SocketAddr, transport: Transport) {
    let mut db = client(addr, transport).await;
    let pong: String = redis::cmd("PING").query_async(&mut db).await.unwrap();
    assert_eq!(pong, "PONG");
    () = db.set("key", "value").await.unwrap();
    assert_eq!(db.get::<_, String>("key").await.unwrap(), "value");
    assert_eq!(db.del::<_, u32>(&["key", "other"]).await.unwrap(), 1);
    assert_eq!(db.get::<_, Option<String>>("key").await.unwrap(), None);
    let error = redis::cmd("NO-SUCH").query_async::<()>(&mut db).await.unwrap_err();
    assert!(error.to_string().contains("unknown command"), "{error}");

    // A value of some megabytes, of any bytes.
    let large: Vec<u8> = (0..8_000_000_u32).map(|i| (i % 253) as u8).collect();
    () = db.set("large", &large).await.unwrap();
    assert!(db.get::<_, Vec<u8>>("large").await.unwrap() == large);
    assert_eq!(db.del::<_, u32>("large").await.unwrap(), 1);

    // One pipeline, then many tasks with one connection.
    let mut pipeline = redis::pipe();
    for i in 0..1000 {
        pipeline.set(format!("p{i}"), i).ignore().get(format!("p{i}"));
    }
    let got: Vec<u32> = pipeline.query_async(&mut db).await.unwrap();
    assert_eq!(got, (0..1000).collect::<Vec<_>>());
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let mut db = db.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let _: i64 = db.incr("counter", 1).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(db.get::<_, u32>("counter").await.unwrap(), 1000);
}

/// Messages of a channel to several subscribers.
async fn publish(addr: SocketAddr, transport: Transport) {
    let mut subscribers = Vec::new();
    for _ in 0..3 {
        let stream = stream(addr, transport).await;
        let mut subscriber = PubSub::new(&RedisConnectionInfo::default(), stream).await.unwrap();
        subscriber.subscribe("news").await.unwrap();
        subscribers.push(subscriber);
    }
    let mut db = client(addr, transport).await;
    for i in 0..100 {
        assert_eq!(db.publish::<_, _, u32>("news", i).await.unwrap(), 3);
    }
    for subscriber in &mut subscribers {
        let mut messages = subscriber.on_message();
        for i in 0..100 {
            let message = messages.next().await.unwrap();
            assert_eq!(message.get_channel_name(), "news");
            assert_eq!(message.get_payload::<u32>().unwrap(), i);
        }
    }
}

/// RESP3: a connection that asks is told, too.
async fn subscribe_and_ask(addr: SocketAddr, transport: Transport) {
    let (sender, mut pushed) = tokio::sync::mpsc::unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
    let stream = stream(addr, transport).await;
    let (mut db, connection) =
        MultiplexedConnection::new_with_config(&info, stream, config).await.unwrap();
    tokio::spawn(connection);
    db.subscribe("own").await.unwrap();
    assert_eq!(pushed.recv().await.unwrap().kind, PushKind::Subscribe);
    assert_eq!(db.publish::<_, _, u32>("own", "text").await.unwrap(), 1);
    assert_eq!(pushed.recv().await.unwrap().kind, PushKind::Message);
    db.unsubscribe("own").await.unwrap();
    assert_eq!(db.publish::<_, _, u32>("own", "text").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_asks_over_exs() {
    for transport in EACH {
        use_it(server(transport), transport).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_come_over_exs() {
    for transport in EACH {
        let addr = server(transport);
        publish(addr, transport).await;
        subscribe_and_ask(addr, transport).await;
    }
}

/// The server sees the end of a client, and a client that sends no command is refused.
#[tokio::test]
async fn a_server_ends_with_its_client() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for transport in EACH {
        let addr = server(transport);
        let mut client = stream(addr, transport).await;
        client.write_all(b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers, "+PONG\r\n+PONG\r\n");
        let mut client = stream(addr, transport).await;
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert_eq!(client.read(&mut [0; 10]).await.unwrap(), 0);
    }
}

/// A process that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts a program, and reads its lines until `find` finds an address in one.
fn start(
    command: &mut Command,
    find: impl Fn(&str) -> Option<SocketAddr>,
) -> (Running, SocketAddr) {
    let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    let addr = lines.find_map(|line| find(&line)).expect("it ended before it listened");
    // What else it says must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (running, addr)
}

/// Redis itself, behind the proxy from EXS to TCP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_reached_through_the_proxy() {
    let program = std::env::var("EXS_TEST_REDIS").unwrap_or_else(|_| "redis-server".to_owned());
    if Command::new(&program).arg("--version").output().is_err() {
        exs_tests::skip::skip(&format!("there is no {program}"));
        return;
    }
    // A port that was free a moment ago: Redis cannot be given port 0.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port_arg = port.to_string();
    let mut redis = Command::new(&program);
    redis.args(["--port", &port_arg, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let tcp = SocketAddr::from(([127, 0, 0, 1], port));
    let (_redis, tcp) =
        start(&mut redis, |line| line.contains("Ready to accept connections").then_some(tcp));
    let mut proxy = Command::new(env!("CARGO_BIN_EXE_exs-proxy"));
    proxy.args(["exs:127.0.0.1:0", &tcp.to_string()]);
    let (_proxy, addr) = start(&mut proxy, |line| line.rsplit(' ').next()?.parse().ok());
    for transport in EACH {
        use_it(addr, transport).await;
        let mut db = client(addr, transport).await;
        assert_eq!(db.del::<_, u32>("counter").await.unwrap(), 1);
        publish(addr, transport).await;
        subscribe_and_ask(addr, transport).await;
    }
}
