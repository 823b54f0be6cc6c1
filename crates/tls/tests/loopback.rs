//! Two ends of a TCP connection of this machine.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{net::TcpListener, rc::Rc};

use pinstripe_runtime::{
    Stream, shard,
    uring::{Connection, RuntimeConfig, SocketStream, connect_tcp_from, run},
};
use pinstripe_tls::{Hash, Key, Keys, TlsError, TlsStream};

fn key(byte: u8) -> Key {
    Key::new(b"NVMe0R02 host subsystem", &[byte; 48], Hash::Sha384).unwrap()
}

fn on_a_shard<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    run(&RuntimeConfig::unpinned(1), |_| async move { test().await }).unwrap();
}

/// Both ends of a connection.
async fn pair() -> (Rc<SocketStream>, Rc<SocketStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = connect_tcp_from(None, address).await.unwrap();
    let connection = Connection::new(listener.accept().unwrap().0);
    (client, connection.attach().unwrap())
}

async fn connect(stream: Rc<SocketStream>, key: &Key) -> Result<TlsStream, TlsError> {
    let client = TlsStream::client(stream, key)?;
    client.shake_hands().await.map(|_| client)
}

async fn accept(stream: Rc<SocketStream>, key: Key) -> Result<TlsStream, TlsError> {
    let server = TlsStream::server(stream, &Keys::new(vec![key])?)?;
    server.shake_hands().await.map(|_| server)
}

async fn meet(client: Key, server: Key) -> (Result<TlsStream, TlsError>, Result<TlsStream, TlsError>) {
    let (one, other) = pair().await;
    let accepting = shard::spawn_joined(accept(other, server));
    let connected = connect(one, &client).await;
    (connected, accepting.join().await)
}

/// Receives so many bytes.
async fn receive(stream: &TlsStream, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < bytes {
        let outcome = stream.receive(shard::buffer(100_000)).await;
        let count = outcome.result.unwrap();
        assert!(count > 0, "the end after {} bytes", all.len());
        all.extend_from_slice(&outcome.buffer.unwrap()[..count]);
    }
    all
}

async fn send(stream: &TlsStream, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut buffer = shard::buffer(rest.len());
        buffer.copy_from_slice(rest);
        rest = &rest[stream.send(buffer.freeze()).await.result.unwrap()..];
    }
}

#[test]
fn what_is_sent_arrives_both_ways_at_a_time() {
    on_a_shard(|| async {
        let (client, server) = meet(key(1), key(1)).await;
        let (client, server) = (Rc::new(client.unwrap()), Rc::new(server.unwrap()));
        let data = |seed: usize| -> Rc<Vec<u8>> {
            Rc::new((0..3_usize << 20).map(|at| (at * 31 % 251 + seed).to_le_bytes()[0]).collect())
        };
        let (there, back) = (data(1), data(5));
        let tasks = [(&client, &there), (&server, &back)].map(|(stream, data)| {
            let (stream, data) = (Rc::clone(stream), Rc::clone(data));
            shard::spawn_joined(async move { send(&stream, &data).await })
        });
        let (client_end, expected) = (Rc::clone(&client), Rc::clone(&back));
        let receiving =
            shard::spawn_joined(async move { receive(&client_end, expected.len()).await == *expected });
        assert!(receive(&server, there.len()).await == *there);
        assert!(receiving.join().await);
        for task in tasks {
            task.join().await;
        }
        client.shutdown();
        assert_eq!(server.receive(shard::buffer(10)).await.result.unwrap(), 0, "the end");
    });
}

#[test]
fn other_keys_plain_bytes_and_silence_are_refused_at_both_ends() {
    on_a_shard(|| async {
        let (client, server) = meet(key(1), key(2)).await;
        let error = server.err().unwrap();
        assert!(matches!(error, TlsError::Refused(_)), "{error}");
        // It learns nothing of the reason.
        assert!(client.is_err());

        let (one, other) = pair().await;
        let mut plain = shard::buffer(32 << 10);
        plain.fill(b'G');
        one.send(plain.freeze()).await.result.unwrap();
        let error = accept(other, key(1)).await.err().unwrap();
        assert!(matches!(error, TlsError::Refused(_)), "{error}");

        let (_one, other) = pair().await;
        let before = shard::now();
        let error = accept(other, key(1)).await.err().unwrap();
        assert!(matches!(error, TlsError::TimedOut), "{error}");
        assert!(shard::now() - before < 10_000_000_000);

        let (one, other) = pair().await;
        one.shutdown();
        let error = accept(other, key(1)).await.err().unwrap();
        assert!(matches!(error, TlsError::Closed), "{error}");
    });
}

#[test]
fn a_receive_that_is_interrupted_loses_nothing_and_another_stream_goes_on() {
    on_a_shard(|| async {
        let (one, other) = pair().await;
        let keys = Keys::new(vec![key(1)]).unwrap();
        let server = Rc::new(TlsStream::server(Rc::clone(&other) as Rc<dyn Stream>, &keys).unwrap());
        let shaking = {
            let server = Rc::clone(&server);
            shard::spawn_joined(async move { server.shake_hands().await })
        };
        let client = connect(one, &key(1)).await.unwrap();
        shaking.join().await.unwrap();
        for round in 0..3_u8 {
            send(&client, &[round; 1000]).await;
            assert_eq!(receive(&server, 1000).await, [round; 1000]);
            let receiving = server.receive(shard::buffer(100));
            shard::sleep(1_000_000).await;
            server.interrupt(&receiving);
            assert!(receiving.await.result.is_err(), "nothing had come");
        }
        let left = server.leave().unwrap();
        assert_eq!(format!("{left:?}"), "Left(..)");
        // It goes, and the connection stays.
        drop(Rc::into_inner(server).unwrap());
        send(&client, b"meanwhile").await;
        let next = TlsStream::resumed(other, &keys, &left).unwrap();
        assert_eq!(receive(&next, 9).await, b"meanwhile");
        send(&next, b"answer").await;
        assert_eq!(receive(&client, 6).await, b"answer");
        drop(next);
        assert_eq!(client.receive(shard::buffer(10)).await.result.unwrap(), 0, "the end");
    });
}
