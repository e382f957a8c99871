//! SQLite's file system with a [`Disk`] looking over its shoulder: every read, write, sync, truncation and deletion of a
//! database, log or journal in a watched directory is told to the disk, which may refuse it; all else goes straight to
//! the operating system's own implementation. The one room of the workspace with `unsafe`.
//!
//! Why it is sound. SQLite allocates `szOsFile` bytes, suitably aligned, for each file and hands the same address to
//! every method until `xClose`. [`File`] is what lies there: `base` first, so that the address is a `sqlite3_file` too,
//! and behind it the real implementation's own file, for which `szOsFile` reserves its size. A method is called by one
//! thread at a time for one file, after an `xOpen` that set its methods; buffers are valid for the length given.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Once;

use rusqlite::ffi;

use crate::disk::{self, Disk, Refused};

/// A file as SQLite sees it. The real one follows it in memory.
#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    real: *mut ffi::sqlite3_file,
    /// The disk and the file's name on it; null for files nobody watches.
    watched: *mut Watched,
}

struct Watched {
    disk: Disk,
    name: String,
}

/// Where the real file lies behind [`File`], aligned for anything.
const REAL_AT: usize = size_of::<File>().next_multiple_of(16);

struct Real(*mut ffi::sqlite3_vfs);

// SAFETY: the pointer is to SQLite's own registration, which lives as long as the process and is never changed.
unsafe impl Send for Real {}
// SAFETY: as above; the functions behind it may be called from any thread.
unsafe impl Sync for Real {}

static REAL: std::sync::OnceLock<Real> = std::sync::OnceLock::new();

/// Makes this file system the default of the process, once.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a null name asks for the default; SQLite initialises itself first.
        let real = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) };
        assert!(!real.is_null(), "SQLite has a default file system");
        // SAFETY: not null, and valid for the life of the process. What is copied are numbers and functions.
        let mut ours = unsafe { *real };
        assert!(REAL.set(Real(real)).is_ok(), "installed once");
        ours.zName = c"watched".as_ptr();
        ours.szOsFile += c_int::try_from(REAL_AT).expect("a few words");
        ours.xOpen = Some(open);
        ours.xDelete = Some(delete);
        ours.pNext = std::ptr::null_mut();
        // SAFETY: the registration is leaked, so it outlives every connection.
        let registered = unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 1) };
        assert_eq!(registered, ffi::SQLITE_OK);
    });
}

fn real_vfs() -> *mut ffi::sqlite3_vfs {
    REAL.get()
        .expect("the functions below are reachable only once installed")
        .0
}

/// The watched place a path of SQLite's lies in.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn place(name: *const c_char) -> Option<(Disk, String)> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, so a C string by the caller's word.
    let name = unsafe { CStr::from_ptr(name) };
    disk::watching(Path::new(name.to_str().ok()?))
}

fn code(refused: Refused) -> c_int {
    match refused {
        Refused::Full => ffi::SQLITE_FULL,
        Refused::Read => ffi::SQLITE_IOERR_READ,
        Refused::Write => ffi::SQLITE_IOERR_WRITE,
        Refused::Sync => ffi::SQLITE_IOERR_FSYNC,
        Refused::Truncate => ffi::SQLITE_IOERR_TRUNCATE,
        Refused::Delete => ffi::SQLITE_IOERR_DELETE,
        Refused::Open => ffi::SQLITE_CANTOPEN,
    }
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let kinds = ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL;
    let watched = match flags & kinds {
        0 => None,
        // SAFETY: SQLite passes null or a C string.
        _ => unsafe { place(name) },
    };
    // SAFETY: `szOsFile` bytes lie at `file`: ours, then the real implementation's.
    unsafe {
        let ours = file.cast::<File>();
        let real = file.cast::<u8>().add(REAL_AT).cast::<ffi::sqlite3_file>();
        // Without methods SQLite does not close what could not be opened.
        (*ours).base.pMethods = std::ptr::null();
        (*real).pMethods = std::ptr::null();
        if let Some((disk, name)) = &watched
            && let Err(refused) = disk.opening(name)
        {
            return code(refused);
        }
        let vfs = real_vfs();
        let opened = (*vfs).xOpen.expect("a file system opens files")(vfs, name, real, flags, out_flags);
        if (*real).pMethods.is_null() {
            return opened;
        }
        if let Some((disk, name)) = &watched {
            disk.opened(name);
        }
        let watched = watched.map(|(disk, name)| Box::new(Watched { disk, name }));
        (*ours).real = real;
        (*ours).watched = watched.map_or(std::ptr::null_mut(), Box::into_raw);
        (*ours).base.pMethods = &METHODS;
        opened
    }
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite passes a C string.
    let watched = unsafe { place(name) };
    if let Some((disk, name)) = &watched
        && let Err(refused) = disk.deleting(name)
    {
        return code(refused);
    }
    let vfs = real_vfs();
    // SAFETY: the real implementation gets what SQLite passed, and its own registration.
    let deleted = unsafe { (*vfs).xDelete.expect("a file system deletes files")(vfs, name, sync) };
    if let Some((disk, name)) = &watched
        && deleted == ffi::SQLITE_OK
    {
        disk.deleted(name);
    }
    deleted
}

/// Calls a method of the real file.
macro_rules! real {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        // SAFETY: SQLite calls methods of opened files only, so `real` points at an open file of the real
        // implementation, whose methods are of the same or a higher version than ours.
        unsafe {
            let real = (*$file.cast::<File>()).real;
            let methods = (*real).pMethods;
            (*methods).$method.expect("the real file system has every method of version 2")(real $(, $argument)*)
        }
    }};
}

/// The watcher of an opened file.
///
/// # Safety
/// `file` was opened by [`open`] and is not closed; the reference is not kept beyond the call.
unsafe fn watched<'f>(file: *mut ffi::sqlite3_file) -> Option<&'f Watched> {
    // SAFETY: by the caller's word; the box is freed only by `close`.
    unsafe { (*file.cast::<File>()).watched.as_ref() }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let closed = real!(file, xClose);
    // SAFETY: the box was made by `open` and nothing uses it after `close`.
    unsafe {
        let ours = file.cast::<File>();
        if !(*ours).watched.is_null() {
            drop(Box::from_raw((*ours).watched));
            (*ours).watched = std::ptr::null_mut();
        }
        (*ours).base.pMethods = std::ptr::null();
    }
    closed
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, to: *mut c_void, amount: c_int, at: i64) -> c_int {
    // SAFETY: SQLite calls methods of open files only.
    if let Some(Watched { disk, name }) = unsafe { watched(file) }
        && let Err(refused) = disk.reading(name)
    {
        return code(refused);
    }
    real!(file, xRead, to, amount, at)
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    amount: c_int,
    at: i64,
) -> c_int {
    let length = usize::try_from(amount).expect("SQLite writes a positive number of bytes");
    let offset = u64::try_from(at).expect("SQLite writes at a position");
    // SAFETY: SQLite calls methods of open files only; `amount` bytes are readable at `from`.
    let (watched, bytes) = unsafe {
        (
            watched(file),
            std::slice::from_raw_parts(from.cast::<u8>(), length),
        )
    };
    if let Some(Watched { disk, name }) = watched
        && let Err(refused) = disk.writing(name, offset, length)
    {
        return code(refused);
    }
    let written = real!(file, xWrite, from, amount, at);
    if let Some(Watched { disk, name }) = watched
        && written == ffi::SQLITE_OK
    {
        disk.written(name, offset, bytes);
    }
    written
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    // SAFETY: SQLite calls methods of open files only.
    let watched = unsafe { watched(file) };
    if let Some(Watched { disk, name }) = watched
        && let Err(refused) = disk.truncating(name)
    {
        return code(refused);
    }
    let truncated = real!(file, xTruncate, size);
    if let Some(Watched { disk, name }) = watched
        && truncated == ffi::SQLITE_OK
    {
        disk.truncated(name, u64::try_from(size).expect("a size is not negative"));
    }
    truncated
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite calls methods of open files only.
    let watched = unsafe { watched(file) };
    if let Some(Watched { disk, name }) = watched
        && let Err(refused) = disk.syncing(name)
    {
        return code(refused);
    }
    let synced = real!(file, xSync, flags);
    if let Some(Watched { disk, name }) = watched
        && synced == ffi::SQLITE_OK
    {
        disk.synced(name);
    }
    synced
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    real!(file, xFileSize, size)
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    real!(file, xLock, level)
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    real!(file, xUnlock, level)
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, held: *mut c_int) -> c_int {
    real!(file, xCheckReservedLock, held)
}

unsafe extern "C" fn file_control(
    file: *mut ffi::sqlite3_file,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    real!(file, xFileControl, operation, argument)
}

unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    real!(file, xSectorSize)
}

unsafe extern "C" fn device_characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    real!(file, xDeviceCharacteristics)
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    page: c_int,
    size: c_int,
    extend: c_int,
    to: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite calls methods of open files only.
    if let Some(Watched { disk, name }) = unsafe { watched(file) }
        && disk
            .indexing(name, (i64::from(page) + 1) * i64::from(size))
            .is_err()
    {
        return ffi::SQLITE_IOERR_SHMSIZE;
    }
    real!(file, xShmMap, page, size, extend, to)
}

unsafe extern "C" fn shm_lock(file: *mut ffi::sqlite3_file, offset: c_int, n: c_int, flags: c_int) -> c_int {
    real!(file, xShmLock, offset, n, flags)
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    real!(file, xShmBarrier)
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    real!(file, xShmUnmap, delete)
}

/// Version 2: with the shared memory of the log, without memory-mapped reads, which would pass the disk by.
static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
