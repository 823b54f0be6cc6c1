//! `pinstripe config ramdisk`: what has mdadm leave the configured arrays alone in the initial ramdisk.
//!
//! mdadm is there, and our rule of udev is not, nor may the members of an array be there when a ramdisk is
//! made. So our lines depend on the configuration alone: an array that has no UUID there is named.

use std::{collections::BTreeSet, fs};

use pinstripe_config::{Array, Configuration};
use pinstripe_md::identity::{Uuid, short_name};

use super::{md_device, mdadm_conf};
use crate::{
    block_users, called::host, command_line::ConfigRamdiskArguments, failure::Failure, output, scan::look_at,
};

pub fn run(arguments: &ConfigRamdiskArguments) -> Result<(), Failure> {
    // An entry that is wrong is no less of an array of ours.
    let mut arrays = Configuration::known(arguments.configuration.config.as_deref()).arrays;
    let used = used_by_kernel();
    arrays.retain(|entry| !used.iter().any(|(uuid, name)| entry.is(*uuid, name)));
    let copied = match &arguments.file {
        Some(path) => fs::read_to_string(path)
            .map_err(|error| Failure::new(format!("can't read {}: {error}", path.display())))?,
        None => String::new(),
    };
    output::print(&told(&arrays, &host(), &copied))
}

/// The arrays that the kernel has and that something uses, or may use. The root may be on one of them: a
/// machine must boot whatever its configuration says.
fn used_by_kernel() -> Vec<(Uuid, String)> {
    let is_free =
        |name: &String| block_users::users(name).as_deref().is_ok_and(<[block_users::Use]>::is_empty);
    let names = md_device::names().into_iter().filter(|name| !is_free(name));
    let superblock = |name: String| {
        let mut candidates = md_device::members(&name).into_iter().filter_map(|path| look_at(&path).ok()?);
        candidates.find_map(|candidate| candidate.superblock.ok())
    };
    let superblocks = names.filter_map(superblock);
    superblocks.map(|superblock| (superblock.array.set_uuid, superblock.array.name.to_string())).collect()
}

/// A line for each entry, and one more for a name that mdadm writes with this host's; and the text of mdadm's
/// configuration without the arrays. `mdadm --assemble --scan`, which the ramdisk runs while it waits for the
/// root, goes by each line that names an array, whatever another one says.
fn told(arrays: &[Array], host: &str, copied: &str) -> String {
    let words = arrays.iter().flat_map(|entry| words(entry, host));
    let lines: BTreeSet<String> = words.map(|words| format!("ARRAY <ignore> {words}\n")).collect();
    let is_ours = |uuid: Option<Uuid>, name: Option<&str>| {
        arrays.iter().any(|entry| match (entry.uuid, uuid) {
            (Some(own), Some(uuid)) => own == uuid,
            _ => name.is_some_and(|name| {
                entry.name.as_ref().is_some_and(|own| own == name || own == short_name(name))
            }),
        })
    };
    lines.into_iter().collect::<String>() + &mdadm_conf::without(copied, is_ours)
}

/// By what mdadm finds the array.
fn words(entry: &Array, host: &str) -> Vec<String> {
    if let Some(uuid) = entry.uuid {
        return vec![format!("UUID={uuid}")];
    }
    let Some(name) = &entry.name else { return Vec::new() };
    // A quote within quotes can't be written.
    let Some(quote) = ['"', '\''].into_iter().find(|quote| !name.contains(*quote)) else { return Vec::new() };
    let of_host = (!name.contains(':')).then(|| format!("{host}:{name}"));
    let names = [name.clone()].into_iter().chain(of_host);
    names.map(|name| format!("name={quote}{name}{quote}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::load;

    fn told_of(text: &str, copied: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        fs::write(&path, text).unwrap();
        told(&load(Some(&path)).unwrap().arrays, "here", copied)
    }

    #[test]
    fn arrays_are_told_by_uuid_or_by_the_names_that_they_may_have() {
        let text = "[[array]]\nname = 'data'\n[[array]]\nname = 'away:b\"c'\nauto = false\n\
            [[array]]\nname = 'x'\nuuid = '6d41c174:a77e88e8:3d543c04:9a78354b'\n";
        let expected = "ARRAY <ignore> UUID=6d41c174:a77e88e8:3d543c04:9a78354b\n\
            ARRAY <ignore> name=\"data\"\nARRAY <ignore> name=\"here:data\"\nARRAY <ignore> name='away:b\"c'\n";
        assert_eq!(told_of(text, ""), expected);
        assert_eq!(told_of("", ""), "");
    }

    #[test]
    fn no_line_of_mdadms_names_an_array_of_ours() {
        let ours = "6d41c174:a77e88e8:3d543c04:9a78354b";
        let text = format!("[[array]]\nname = 'data'\n[[array]]\nname = 'x'\nuuid = '{ours}'\n");
        let others = "00000000:a77e88e8:3d543c04:9a78354b";
        let lines = [
            ("MAILADDR root".to_owned(), false),
            ("ARRAY /dev/md/md0 metadata=1.2".to_owned(), false),
            (format!(" UUID={others} name=here:md0"), false),
            (format!("ARRAY /dev/md/x metadata=1.2 UUID={ours} name=here:x"), true),
            (format!("ARRAY /dev/md/x UUID={others} name=here:x"), false),
            (format!("ARRAY /dev/md/data UUID={others}"), true),
            ("\tname=away:data".to_owned(), true),
            ("ARRAY /dev/md/data".to_owned(), true),
            (format!("ARRAY <ignore> UUID={ours}"), false),
        ];
        let copied = lines.each_ref().map(|(line, _)| format!("{line}\n")).concat();
        let silenced =
            lines.map(|(line, goes)| format!("{}{line}\n", if goes { "#pinstripe# " } else { "" }));
        let told = told_of(&text, &copied);
        assert!(told.ends_with(&silenced.concat()), "{told}");
    }
}
