//! Users and groups of this machine, by the names in its files.

use std::fs;

/// The number of a user.
pub fn user(text: &str) -> Result<u32, String> {
    number(text, "user", "/etc/passwd")
}

/// The number of a group.
pub fn group(text: &str) -> Result<u32, String> {
    number(text, "group", "/etc/group")
}

fn number(text: &str, what: &str, path: &str) -> Result<u32, String> {
    match text.parse() {
        // The kernel takes it for no change.
        Ok(u32::MAX) => return Err(format!("{text} is no {what}")),
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    let all = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    find(text, &all).ok_or_else(|| {
        format!("there is no {what} '{text}' in {path}; one that is known elsewhere is named by its number")
    })
}

/// Both files have the name first and the number third.
fn find(name: &str, all: &str) -> Option<u32> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    };
    all.lines().find_map(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_name_or_number() {
        let all = "root:x:0:0:root:/root:/bin/bash\ndisk:x:6:\nnone:x::\n";
        assert_eq!((find("root", all), find("disk", all)), (Some(0), Some(6)));
        assert_eq!((find("dis", all), find("none", all), find("", all)), (None, None, None));
        assert_eq!((user("7"), group("root")), (Ok(7), Ok(0)));
        assert!(user("4294967295").is_err());
        assert!(group("no such group").unwrap_err().contains("/etc/group"));
    }
}
