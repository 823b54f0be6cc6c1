//! Where the server is told what to do.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use pinstripe_control::place;
use pinstripe_runtime::{
    trust::check_place,
    uring::{Access, Listener},
};

use super::{front::listen_unix, succession::Inheritance};
use crate::{command_line::ServeArguments, failure::Failure};

/// What the control socket is called among the listening sockets.
pub const PROTOCOL: &str = "control";

/// The control socket. Its file goes with it.
pub struct ControlSocket {
    pub listener: Listener,
    /// As it was given.
    path: PathBuf,
    /// How the files of this array begin.
    pub stem: String,
    /// By which `pinstripe list` finds a control socket elsewhere, and udev's rules learn that the array is
    /// served.
    _link: Option<place::Link>,
}

impl ControlSocket {
    /// Binds it.
    pub fn listen(
        arguments: &ServeArguments,
        name: &str,
        uuid: &str,
        inherited: Option<&Inheritance>,
    ) -> Result<Self, Failure> {
        let stem = place::stem(arguments.called.as_deref().unwrap_or(name), uuid);
        let path = match &arguments.control {
            Some(path) => path.clone(),
            None => default_folder()?.join(format!("{stem}.sock")),
        };
        let listener = listen_unix(inherited, PROTOCOL, &path, Access::default())?;
        let absolute = PathBuf::from(absolute(&path));
        let link = default_folder().ok().and_then(|folder| place::Link::new(&folder, uuid, &absolute));
        Ok(Self { listener, path, stem, _link: link })
    }

    /// Where it is, whatever folder one is in.
    pub fn absolute_path(&self) -> PathBuf {
        PathBuf::from(absolute(&self.path))
    }

    /// The folder in which it is.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

/// The folder for sockets, made if need be for this user only.
pub fn default_folder() -> Result<PathBuf, Failure> {
    let folder = place::folders().swap_remove(0);
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Failure::new(format!(
            "can't make the folder {} for the control socket: {error}; choose another path with --control",
            folder.display()
        ))),
        _ => match check_place(&folder) {
            Ok(()) => Ok(folder),
            Err(why) => Err(Failure::new(format!(
                "sockets in {} can't be trusted: {why}; or choose another path with --control",
                folder.display()
            ))),
        },
    }
}

/// The path as others can use it, whatever folder they are in.
pub fn absolute(path: &Path) -> String {
    // It was bound already, so it is no empty path, which alone would fail.
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
