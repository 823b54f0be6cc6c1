//! The array as one plain file, by the kernel's own FUSE.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FallocateFlags, SeekFrom},
    io::Errno,
};

use crate::{
    nbd::{Client, pattern},
    world::{LoopDevice, MIB, PATIENCE, World, without_privileges},
};

const KIB: u64 = 1 << 10;

/// Whether a file can be mounted here. Root on a machine with the driver can: what fails there has failed.
pub fn may_mount() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "only root mounts files"
    } else if !fs::exists("/dev/fuse").unwrap() {
        "there is no /dev/fuse"
    } else {
        return true;
    };
    eprintln!("DID NOT RUN: {why}");
    false
}

fn open(path: &PathBuf) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn the_array_is_a_file_that_is_written_at_any_byte() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let members = world.raid5(4);
    let server = world.serve(&["--shards", "2", "--fuse", "disk"], &members);
    let path = world.path("disk");
    let shown = path.to_str().unwrap();
    let addresses = server.ready["addresses"].as_array().unwrap();
    assert!(addresses.iter().any(|one| one["protocol"] == "fuse" && one["uri"] == shown), "{addresses:?}");
    let listed = world.run(&["list", "--json"]).ok().out;
    assert!(listed.contains(shown), "{listed}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(shown)).unwrap();
    assert!(mount.contains("max_read=1048576"), "with larger pages the kernel would ask for more: {mount}");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.mode(), metadata.uid()), (server.size_bytes(), 0o100_600, 0));

    // Eight writers, whose pieces meet inside of blocks.
    let mut expected = pattern(1, 4 << 20);
    open(&path).write_all_at(&expected, 0).unwrap();
    let pieces: Vec<(usize, usize)> = (0..2000).map(|at| (at * 777, 777)).collect();
    let new = pattern(2, 2000 * 777);
    expected[..new.len()].copy_from_slice(&new);
    thread::scope(|scope| {
        for writer in 0..8 {
            let (path, new, pieces) = (&path, &new, &pieces);
            scope.spawn(move || {
                let file = open(path);
                for (at, length) in pieces.iter().skip(writer).step_by(8) {
                    file.write_all_at(&new[*at..at + length], *at as u64).unwrap();
                }
                file.sync_all().unwrap();
            });
        }
    });
    let mut found = vec![0; expected.len()];
    let file = open(&path);
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == expected, "a neighbour's bytes were lost");
    let mut client = Client::connect(&server.nbd());
    assert!(client.read(0, expected.len()) == expected, "NBD sees other bytes");
    // And the other way: the kernel keeps no bytes that another front end has changed.
    assert_eq!(client.write(512, &[5; 512]), 0);
    file.read_exact_at(&mut found[..512], 512).unwrap();
    assert_eq!(found[..512], [5; 512]);

    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 100, 700 * KIB).unwrap();
    file.read_exact_at(&mut found[..800 << 10], 0).unwrap();
    let (end, hole) = (100 + (700 << 10), &found[100..100 + (700 << 10)]);
    assert!(hole.iter().all(|byte| *byte == 0));
    assert!(found[..100] == expected[..100] && found[end..800 << 10] == expected[end..800 << 10]);
    let none = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096).unwrap_err();
    assert_eq!(none, Errno::OPNOTSUPP);

    let size = server.size_bytes();
    assert_eq!(file.set_len(MIB).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(
        File::create(&path).unwrap_err().kind(),
        ErrorKind::PermissionDenied,
        "nothing cuts a disk off"
    );
    assert_eq!(file.write_at(b"x", size).unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(file.read_at(&mut found, size).unwrap(), 0);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(5)), Ok(5));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(5)), Ok(size));

    drop(client);
    world.run(&["stop", "data"]).refused(1, &["in use by", shown, "over fuse"]);
    drop(file);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    assert!(!path.exists(), "it was made for the mount");
    world.run(&["examine", "member0"]).ok();
}

/// NBD writes a whole block while FUSE writes a part of it, or zeroes it: bytes beside the part are NBD's.
#[test]
fn a_block_written_by_nbd_is_not_brought_back_by_a_part_written_by_fuse() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let server = world.serve(&["--shards", "2", "--fuse", "disk"], &world.raid5(4));
    let file = open(&world.path("disk"));
    let mut client = Client::connect(&server.nbd());
    let mut random = 1_u64;
    for round in 0..1500_u64 {
        let (byte, at) = (u8::try_from(round % 250).unwrap() + 1, round % 8 * 4096);
        let both = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                file.write_all_at(&[255; 100], at + 200).unwrap();
            });
            both.wait();
            // The part's writer takes a while to come to its lock.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(random >> 56) {
                std::hint::spin_loop();
            }
            assert_eq!(client.write(at, &[byte; 512]), 0);
        });
        let found = client.read(at, 512);
        let beside = found[..200].iter().chain(&found[300..]);
        assert!(beside.copied().all(|found| found == byte), "round {round}: a write by NBD was lost");
    }
    drop((client, file));
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn a_file_that_a_killed_server_leaves_is_taken_away_by_the_next_one() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let members = world.raid5(3);
    let path = world.path("a disk");
    world.file("a disk", 0);
    let server = world.serve(&["--shards", "2", "--fuse", "a disk"], &members);
    let device = LoopDevice::new(&world, "a disk", &["--direct-io=on"]).unwrap();
    let data = pattern(3, 1 << 20);
    {
        let disk = open(&PathBuf::from(&device.path));
        disk.write_all_at(&data, 4096).unwrap();
        disk.sync_all().unwrap();
    }
    world.run(&["stop", "data"]).refused(1, &["a disk as /dev/loop"]);
    server.kill(&world, &members);
    let dead = File::open(&path).unwrap_err().raw_os_error();
    // The latter while the kernel is still closing what the process had open.
    assert!([Errno::NOTCONN, Errno::CONNABORTED].map(|errno| Some(errno.raw_os_error())).contains(&dead));

    let server = world.serve(&["--shards", "1", "--fuse", "a disk"], &members);
    drop(device);
    let file = open(&path);
    let mut found = vec![0; data.len()];
    file.read_exact_at(&mut found, 4096).unwrap();
    assert!(found == data, "what was flushed is gone");
    let others: Vec<String> = (0..3).map(|slot| world.file(&format!("other{slot}"), 8 * MIB)).collect();
    world.create(&["--level", "5", "--name", "other", "--assume-clean"], &others).ok();
    let taken = world.serve_refused(&["--fuse", "a disk"], &others);
    taken.refused(1, &["a disk is served by another process already"]);
    // An order to end is obeyed with the file open; what comes then fails.
    server.signal("TERM");
    assert_eq!(server.ended(), 0);
    assert!(file.read_exact_at(&mut found, 4096).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "the file of before is in its place");
}

/// Copies by a program of that user.
fn copy(from: &Path, to: &Path) -> Output {
    let mut dd = Command::new("dd");
    let [from, to] = [("if", from), ("of", to)].map(|(word, path)| format!("{word}={}", path.display()));
    without_privileges(dd.args([from, to, "bs=64K".to_owned(), "conv=notrunc,fsync".to_owned()]))
        .output()
        .unwrap()
}

#[test]
fn a_user_without_the_right_has_a_file_by_fusermount3() {
    if !may_mount() || !fs::exists("/usr/bin/fusermount3").unwrap() {
        eprintln!("DID NOT RUN: there is no fusermount3, or it can't be tried as another user");
        return;
    }
    let world = World::new();
    let members = world.raid5(3);
    let data = pattern(9, 1 << 20);
    fs::write(world.path("data"), &data).unwrap();
    world.give_away();
    let server = world.serve_without_privileges(&["--shards", "2", "--fuse", "disk"], &members);
    let (path, data_path) = (world.path("disk"), world.path("data"));
    let copied = copy(&data_path, &path);
    assert!(copied.status.success(), "{copied:?}");
    // Not even root's.
    assert_eq!(File::open(&path).unwrap_err().raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
    server.kill(&world, &members);
    // Root isn't told that it is dead, and trusts no sockets in another user's folder.
    let sockets = World::new();
    let folder = sockets.path("pinstripe");
    let arguments = ["serve", "--shards", "1", "--fuse", "disk"];
    let arguments: Vec<&str> = arguments.into_iter().chain(members.iter().map(String::as_str)).collect();
    let refused = world.run_with(("PINSTRIPE_RUNTIME_DIR", folder.to_str().unwrap()), &arguments);
    refused.refused(1, &["mounted by the user 65534", "fusermount3 -u"]);
    let server =
        world.serve_without_privileges(&["--shards", "1", "--fuse", "disk", "--read-only"], &members);
    let copied = copy(&path, &world.path("again"));
    assert!(copied.status.success(), "{copied:?}");
    assert!(fs::read(world.path("again")).unwrap()[..data.len()] == data, "what was flushed is gone");
    assert!(!copy(&data_path, &path).status.success(), "it is written, and served read-only");
    server.signal("TERM");
    assert_eq!(server.ended(), 0);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "the first server made it");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(path.to_str().unwrap()), "it is still mounted: {mounts}");
}

#[test]
fn a_place_that_hides_something_and_a_user_without_the_right_are_refused() {
    let world = World::new();
    let members = world.raid5(3);
    if !fs::exists("/dev/fuse").unwrap() {
        world.serve_refused(&["--fuse", "disk"], &members).refused(1, &["/dev/fuse", "modprobe fuse"]);
        return;
    }
    let before = world.hashes(&members);
    if may_mount() {
        world.file("full", 1);
        fs::create_dir(world.path("folder")).unwrap();
        let refused = |place: &str, words: &[&str]| {
            world.serve_refused(&["--fuse", place], &members).refused(1, words);
        };
        refused("full", &["full isn't empty"]);
        refused("folder", &["folder is no regular file"]);
        refused("member0", &["member0 isn't empty"]);
        refused("nowhere/disk", &["nowhere", "No such file"]);
        world.serve_refused(&["--fuse", ".."], &members).refused(64, &["name a file"]);
    }
    let mut command = world.command(&["serve", "--shards", "1", "--fuse", "disk"]);
    // What is looked at before must be this user's.
    world.give_away();
    // Where there is no fusermount3 either.
    let output = without_privileges(command.args(&members).env("PATH", "/nowhere")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let names_both = said.contains("apt-get install fuse3") && said.contains("CAP_SYS_ADMIN");
    assert!(!output.status.success() && (names_both || said.contains("/dev/fuse")), "{said}");
    assert_eq!(world.hashes(&members), before);
    assert!(!world.path("disk").exists());
}

#[test]
fn an_array_is_not_its_own_member_and_asking_for_that_stops_nothing() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1", "--fuse", "disk"], &members);
    let path = world.path("disk");
    let shown = path.to_str().unwrap();
    for command in [&["add", "data", shown][..], &["replace", "data", "0", "--with", shown]] {
        world.run(command).refused(1, &["is this array itself", "nothing was done"]);
    }
    open(&path).write_all_at(&[7; 4096], 0).unwrap();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

/// A file system with a server that answers nothing, from the first request on.
struct Silent<'a> {
    folder: &'a Path,
    server: std::process::Child,
}

impl<'a> Silent<'a> {
    fn mount(folder: &'a Path) -> Self {
        fs::create_dir(folder).unwrap();
        let script = "exec 3<>/dev/fuse; mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none \"$0\" && exec sleep 1000";
        let server = Command::new("sh").args(["-c", script]).arg(folder).spawn().unwrap();
        let begun = Instant::now();
        while !fs::read_to_string("/proc/self/mounts").unwrap().contains(folder.to_str().unwrap()) {
            assert!(begun.elapsed() < PATIENCE, "it is not mounted");
            thread::sleep(Duration::from_millis(20));
        }
        Self { folder, server }
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // What waits for it has an error then.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("umount").arg("--lazy").arg(self.folder).status();
    }
}

#[test]
fn a_name_on_a_file_system_that_hangs_keeps_no_call_for_ever_and_no_member_in() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let folder = world.path("hangs");
    let silent = Silent::mount(&folder);
    let device = folder.join("disk").display().to_string();
    for command in ["fail", "remove", "replace"] {
        let begun = Instant::now();
        world.run(&[command, "data", &device]).refused(1, &["answer", "nothing was done"]);
        assert!(begun.elapsed() < PATIENCE, "{command}: {:?}", begun.elapsed());
    }
    let begun = Instant::now();
    world.run(&["fail", "data", &members[1]]).ok();
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    drop(silent);
    world.run(&["stop", "data"]).ok();
    drop(server);
}
