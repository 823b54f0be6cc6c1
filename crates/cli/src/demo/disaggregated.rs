//! `pinstripe demo --disaggregated`: a RAID6 with members on four servers, which compute its parity.
//!
//! Servers and client are processes of their own, and everything between them goes over links
//! ([`super::link`]) that count and that can be cut. First it is measured what partial writes cost the
//! client's link, then a server is cut off and comes back, then another one is killed for good and spares of
//! the pool take its members' places.

use std::{path::PathBuf, sync::Arc, time::Instant};

use pinstripe_control::size::ByteSize;
use serde_json::Value;

use super::{
    NAME, link::Traffic, load::Load, serve, shell::Shell, socket, step, store::Store, timed, write_while,
};
use crate::{failure::Failure, server_process::ServerProcess};

const SERVERS: usize = 4;
/// On each server; the RAID6 can do without those of one server.
const MEMBERS_EACH: usize = 2;
/// Bytes of a member, unless the user says otherwise.
const MEMBER_BYTES: u64 = 12 << 20;
/// The server that is cut off, and the one that is killed.
const CUT: usize = 1;
const KILLED: usize = 3;
/// Names of the members, for the user.
const MEMBERS_SHOWN: &str = "nvme-tcp://.../store0?nsid=1 ... nvme-tcp://.../store3?nsid=2";
/// More than this for each byte that users write may not go over the client's link. That of the commands is
/// in it.
const CLIENT_BYTES_MAX: f64 = 1.1;

struct Demo {
    shell: Shell,
    socket: PathBuf,
    stores: Vec<Store>,
}

/// Plays it.
pub fn play(shell: Shell, size: Option<ByteSize>) -> Result<(), Failure> {
    let member_bytes = size.map_or(MEMBER_BYTES, |size| size.0);
    let folder = shell.folder().display();
    step(&format!(
        "Four servers, each with two members and a blank namespace of {}, in {folder}",
        ByteSize(member_bytes)
    ));
    let socket = socket(shell.folder());
    let mut demo = Demo { shell, socket, stores: Vec::new() };
    for number in 0..SERVERS {
        let file = |what: &str| demo.shell.file(&format!("store{number}-{what}"), member_bytes);
        let files = [file("a")?, file("b")?, file("blank")?];
        let store = Store::start(&demo.shell, number, &files)?;
        demo.stores.push(store);
    }
    demo.live()?;
    demo.end()
}

impl Demo {
    fn live(&mut self) -> Result<(), Failure> {
        let members = self.members();
        step("A RAID6 on them: the files are zeroes, so parity matches already");
        let create = ["create", "--level", "6", "--chunk", "64K", "--assume-clean", "--name", NAME];
        let arguments: Vec<&str> = create.into_iter().chain(members.iter().map(String::as_str)).collect();
        self.shell.run_as(&arguments, &format!("{} {MEMBERS_SHOWN}", create.join(" ")))?;
        self.measure(&members)?;
        self.be_cut_off(&members)?;
        let current = self.lose_a_server(&members)?;
        step("Look at the superblocks");
        self.shell.examine(&current, MEMBERS_SHOWN)?;
        self.tell_of_links();
        Ok(())
    }

    /// By slot.
    fn members(&self) -> Vec<String> {
        // Neighbouring slots are on different servers.
        let places =
            (0..MEMBERS_EACH).flat_map(|number| self.stores.iter().map(move |store| (store, number)));
        places.filter_map(|(store, number)| store.namespaces().get(number).cloned()).collect()
    }

    fn serve(&self, options: &[&str], members: &[String]) -> Result<ServerProcess, Failure> {
        let sockets = (self.socket.as_path(), self.shell.control());
        let options = [options, &["--member-timeout", "5"]].concat();
        serve(self.shell.pinstripe(), sockets, &options, members, MEMBERS_SHOWN)
    }

    fn load(&self, server: &ServerProcess) -> Load {
        Load::new(&self.socket, NAME, server.size_bytes())
    }

    fn stop(&self, server: ServerProcess) -> Result<(), Failure> {
        self.shell.run(&["stop", self.shell.control()])?;
        server.ended()
    }

    /// Bytes on the client's link, and those that servers sent to each other.
    fn traffic(&self) -> (Traffic, u64) {
        let is_store = |host: &str| self.stores.iter().any(|store| store.nqn() == host);
        let (mut client, mut servers) = (Traffic::default(), 0);
        for store in &self.stores {
            let own = store.link().traffic(|host| !is_store(host));
            client.to_server += own.to_server;
            client.to_host += own.to_host;
            servers += store.link().traffic(is_store).to_server;
        }
        (client, servers)
    }

    /// What partial writes cost the client's link, with and without the servers' help.
    fn measure(&self, members: &[String]) -> Result<(), Failure> {
        step("Partial writes by a client that computes parity itself, for comparison");
        let server = self.serve(&["--offload", "off"], members)?;
        let quarter = self.load(&server).scattered().of_first(server.size_bytes() / 4);
        let alone = self.cost(&quarter)?;
        self.stop(server)?;
        step("The same with the servers' help, all over the array");
        let server = self.serve(&[], members)?;
        self.all_offload(server.size_bytes())?;
        let whole = self.load(&server).scattered();
        let helped = self.cost(&whole)?;
        timed("verify", &whole, |bar| whole.verify(1, bar))?;
        self.stop(server)?;
        if helped > CLIENT_BYTES_MAX || helped >= alone {
            return Err(Failure::new(format!(
                "the demo failed: the client's link carried {helped:.2} bytes for each byte written"
            )));
        }
        Ok(())
    }

    /// Bytes on the client's link for each that is written.
    #[expect(clippy::cast_precision_loss, reason = "for the eye")]
    fn cost(&self, load: &Load) -> Result<f64, Failure> {
        let (client_before, servers_before) = self.traffic();
        timed("write", load, |bar| load.write_all(1, bar))?;
        let (client, servers) = self.traffic();
        let bytes = load.size_bytes() as f64;
        // A link is full when one of its directions is.
        let sent = (client.to_server - client_before.to_server) as f64 / bytes;
        let received = (client.to_host - client_before.to_host) as f64 / bytes;
        let between = (servers - servers_before) as f64 / bytes;
        println!(
            "    for each byte written the client sent {sent:.2} and received {received:.2}, the servers sent each other {between:.2}"
        );
        Ok(sent + received)
    }

    /// Every member's server must take part.
    fn all_offload(&self, size_bytes: u64) -> Result<(), Failure> {
        let slots = SERVERS * MEMBERS_EACH;
        let detail = self.shell.wait_until("all servers should compute", |now| {
            let offload =
                |member: &&Value| member["offload"].is_object() && member["offload"]["plain"].is_null();
            now["members"].as_array().is_some_and(|all| all.iter().filter(offload).count() == slots)
        })?;
        let epoch = &detail["members"][0]["offload"]["epoch"];
        println!("    {} on {slots} members, all of which offload, epoch {epoch}", ByteSize(size_bytes));
        Ok(())
    }

    /// A partition while everything is written anew: the array goes on, and the server's members come back by
    /// the bitmap.
    fn be_cut_off(&self, members: &[String]) -> Result<(), Failure> {
        let server = self.serve(&[], members)?;
        let load = Arc::new(self.load(&server).scattered());
        step(&format!(
            "A partition: nothing gets to store{CUT} or from it any more, while everything is written anew"
        ));
        let link = self.stores[CUT].link();
        write_while(&load, 2, || {
            link.cut();
            let lost = |now: &Value| missing(now) == MEMBERS_EACH;
            self.shell.wait_until("the members that are cut off should be lost", lost)?;
            println!("    {MEMBERS_EACH} members are lost, the array goes on without them");
            Ok(())
        })?;
        timed("verify", &load, |bar| load.verify(2, bar))?;
        step("The link is mended: old packets arrive late, and the members come back by themselves");
        link.mend();
        self.wait_until_whole()?;
        timed("verify", &load, |bar| load.verify(2, bar))?;
        self.shell.run(&["check", self.shell.control()])?;
        self.stop(server)
    }

    /// A server is killed while everything is written anew, and stays away: the pool has spares. Returns the
    /// device of each slot then.
    fn lose_a_server(&mut self, members: &[String]) -> Result<Vec<String>, Failure> {
        step("Serve it again, with the servers' blank namespaces as a pool of spares");
        let pool: Vec<String> = self.stores.iter().map(|store| store.link().address().to_string()).collect();
        let mut options: Vec<&str> = pool.iter().flat_map(|server| ["--spare-pool", server]).collect();
        options.extend(["--spare-pool-delay", "1"]);
        let server = self.serve(&options, members)?;
        let load = Arc::new(self.load(&server).scattered());
        step(&format!(
            "store{KILLED} is killed (SIGKILL) while everything is written anew, and never comes back"
        ));
        let Self { stores, shell, .. } = self;
        write_while(&load, 3, || stores[KILLED].kill())?;
        step("No command is given: two spares of the pool take the lost members' places and are rebuilt");
        let whole =
            shell.wait_until("spares of the pool should have taken over", |now| now["degraded"] == false)?;
        let current: Vec<String> = (0..members.len())
            .filter_map(|slot| Some(whole["members"][slot]["device"].as_str()?.to_owned()))
            .collect();
        for (slot, (device, before)) in current.iter().zip(members).enumerate() {
            if device != before {
                println!("    slot {slot}: {device}");
            }
        }
        timed("verify", &load, |bar| load.verify(3, bar))?;
        step("Compare all parity with all data");
        shell.run(&["check", shell.control()])?;
        self.stop(server)?;
        Ok(current)
    }

    fn wait_until_whole(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        self.shell.wait_until("the members should be back", |now| {
            now["degraded"] == false && now["failed"].as_array().is_some_and(Vec::is_empty)
        })?;
        println!("    whole again, after {:.1} seconds", begun.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Slots without a member.
fn missing(detail: &Value) -> usize {
    let gone = |member: &&Value| member["state"] == "missing";
    detail["members"].as_array().map_or(0, |all| all.iter().filter(gone).count())
}

/// How a machine is called in the table of links.
fn name(machine: Option<usize>) -> String {
    machine.map_or_else(|| "client".to_owned(), |number| format!("store{number}"))
}

impl Demo {
    /// Bytes that one machine sent another one; `None` is the client.
    fn sent(&self, from: Option<usize>, to: Option<usize>) -> u64 {
        let between = |host: Option<usize>, server: usize| {
            let is_host = |name: &str| self.stores.iter().position(|store| store.nqn() == name) == host;
            self.stores[server].link().traffic(is_host)
        };
        let to_server = to.map_or(0, |server| between(from, server).to_server);
        to_server + from.map_or(0, |server| between(to, server).to_host)
    }

    fn tell_of_links(&self) {
        step("Bytes on each link, of everything since the beginning");
        let machines: Vec<Option<usize>> = std::iter::once(None).chain((0..SERVERS).map(Some)).collect();
        let cells =
            |cells: &[String]| cells.iter().map(|cell| format!("{cell:>12}")).collect::<Vec<_>>().concat();
        let head: Vec<String> = machines.iter().map(|to| format!("to {}", name(*to))).collect();
        println!("    {:6}  {}", "", cells(&head));
        for from in &machines {
            let row = machines
                .iter()
                .map(|to| if from == to { "-".to_owned() } else { mebibytes(self.sent(*from, *to)) });
            println!("    {:6}  {}", name(*from), cells(&row.collect::<Vec<_>>()));
        }
    }

    /// Ends the servers that are left, which must have nothing to do any more.
    fn end(self) -> Result<(), Failure> {
        step("Stop the servers");
        for (number, store) in self.stores.into_iter().enumerate().filter(|(number, _)| *number != KILLED) {
            let done = store.stop()?;
            let counter = |name: &str| done[name].as_u64().unwrap_or(0);
            println!(
                "    store{number}: {} parts of parity sent to others, {} received, {} summed up on it, {} commits, {} operations dropped",
                counter("peers_sent"),
                counter("peers_received"),
                counter("parities") + counter("reduces"),
                counter("commits"),
                counter("dropped"),
            );
            if counter("held") > 0 {
                return Err(Failure::new(format!(
                    "the demo failed: store{number} ended with operations under way: {done}"
                )));
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "for the eye")]
fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
