//! To which users of this machine the sockets of clients are open.

use clap::Args;

use crate::accounts;

#[derive(Clone, Debug, Default, Args)]
pub struct SocketOptions {
    /// Octal mode of the unix sockets of --nbd and --vhost-user. Programs that may write to such a socket may
    /// read and write everything [default: 0600, with --socket-group 0660]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub socket_mode: Option<u32>,
    /// Owner of these sockets: a user, by name or number
    #[arg(long, value_name = "USER", value_parser = accounts::user)]
    pub socket_owner: Option<u32>,
    /// Group of these sockets, by name or number
    #[arg(long, value_name = "GROUP", value_parser = accounts::group)]
    pub socket_group: Option<u32>,
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => {
            Err("an octal mode from 0600 to 0777 is needed, with which the owner may read and write"
                .to_owned())
        }
    }
}
