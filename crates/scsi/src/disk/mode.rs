//! MODE SENSE and MODE SELECT: the pages Caching (SBC-3 section 6.4.5), Control and Informational Exceptions Control
//! (SPC-4 sections 7.5.8 and 7.5.13).

use millrace_vfs::Views;

use super::{Disk, command::Job};
use crate::{
    attention::UnitAttention,
    bytes::{be16, put},
    failure::Outcome,
    sense::{AdditionalSense, Sense},
};

/// WCE, in byte 2 of the Caching page.
const WCE: u8 = 0x04;
/// SWP, in byte 4 of the Control page.
const SWP: u8 = 0x08;
/// TAS, in byte 5 of the Control page: a task that another initiator aborts ends with TASK ABORTED status.
const TAS: u8 = 0x40;
/// Page codes.
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;

/// The changeable parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Modes {
    /// WCE: completed writes may be volatile until SYNCHRONIZE CACHE.
    pub(super) write_cache: bool,
    /// SWP: writes are refused.
    pub(super) software_write_protect: bool,
}

impl Default for Modes {
    fn default() -> Self {
        Self { write_cache: true, software_write_protect: false }
    }
}

impl Modes {
    /// The pages with these values, in order of page code.
    fn pages(self) -> [Vec<u8>; 3] {
        let mut caching = vec![0; 20];
        put(&mut caching, 0, &[CACHING, 18, if self.write_cache { WCE } else { 0 }]);
        let mut control = vec![0; 12];
        // QUEUE ALGORITHM MODIFIER 1: simple tasks may be reordered. BUSY TIMEOUT PERIOD: unlimited.
        let swp = if self.software_write_protect { SWP } else { 0 };
        put(&mut control, 0, &[CONTROL, 10, 0, 0x10, swp, TAS, 0, 0, 0xff, 0xff]);
        let mut exceptions = vec![0; 12];
        put(&mut exceptions, 0, &[EXCEPTIONS, 10]);
        [caching, control, exceptions]
    }
}

/// The pages with ones in the changeable bits.
fn changeable() -> [Vec<u8>; 3] {
    let ones = Modes { write_cache: true, software_write_protect: true }.pages();
    let zeros = Modes { write_cache: false, software_write_protect: false }.pages();
    let mut masks = ones;
    for (page, zeros) in masks.iter_mut().zip(zeros) {
        page.iter_mut().zip(zeros).skip(2).for_each(|(one, zero)| *one ^= zero);
    }
    masks
}

impl Disk {
    /// Block descriptors: short, or long with LLBAA (SBC-3 sections 6.4.2.2 and 6.4.2.3).
    fn block_descriptor(&self, long: bool) -> Vec<u8> {
        let (blocks, size) = (self.blocks(), self.block_bytes());
        if long {
            let [high, low] = [blocks.to_be_bytes(), u64::from(size).to_be_bytes()];
            return [high, low].concat();
        }
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        [blocks.to_be_bytes(), size.to_be_bytes()].concat()
    }
}

impl Job {
    pub(super) fn mode_sense(&self) -> Outcome<Vec<u8>> {
        let (cdb, disk) = (&self.cdb, &self.disk);
        let (control, page, subpage) = (cdb.byte(2) >> 6, cdb.byte(2) & 0x3f, cdb.byte(3));
        let pages = match control {
            0 => disk.modes.lock().pages(),
            1 => changeable(),
            2 => Modes::default().pages(),
            _ => return Err(Sense::illegal(AdditionalSense::SAVING_NOT_SUPPORTED).into()),
        };
        let wanted = |p: &&Vec<u8>| page == ALL_PAGES || p.first().is_some_and(|code| code & 0x3f == page);
        let pages = pages.iter().filter(wanted).flatten().copied().collect::<Vec<u8>>();
        // Subpage 0xff stands for all subpages, among them page_0 format.
        if pages.is_empty() {
            return Err(Sense::cdb_field(2, Some(5)).into());
        }
        if subpage != 0 && subpage != ALL_SUBPAGES {
            return Err(Sense::cdb_field(3, None).into());
        }
        let ten = cdb.command.len() == 10;
        let long = ten && cdb.flag(0x10);
        let descriptor = if cdb.flag(0x08) { Vec::new() } else { disk.block_descriptor(long) };
        // WP and DPOFUA.
        let device = if disk.is_write_protected() { 0x80 } else { 0 } | 0x10;
        // All lengths are below 256.
        let length = (descriptor.len() + pages.len()) as u8;
        let header = if ten {
            vec![0, length + 6, 0, device, u8::from(long), 0, 0, descriptor.len() as u8]
        } else {
            vec![length + 3, 0, device, descriptor.len() as u8]
        };
        Ok([header, descriptor, pages].concat())
    }

    pub(super) fn mode_select(&self) -> Outcome<Views> {
        // SP: pages cannot be saved. PF: pages have the format of this standard.
        if self.cdb.flag(0x01) {
            return Err(Sense::cdb_field(1, Some(0)).into());
        }
        let list = self.parameter_list()?;
        if !self.cdb.flag(0x10) && !list.is_empty() {
            return Err(Sense::cdb_field(1, Some(4)).into());
        }
        if list.is_empty() {
            return Ok(Views::new());
        }
        let start = self.skip_descriptors(&list)?;
        let mut modes = self.disk.modes.lock();
        let old = *modes;
        *modes = selected(&list, start, old)?;
        let changed = *modes != old;
        drop(modes);
        if changed {
            self.disk.raise(UnitAttention::ModeParametersChanged, Some(self.nexus.nexus.id()));
        }
        Ok(Views::new())
    }

    /// The offset of the first page. A block descriptor must not change the capacity or the block length.
    fn skip_descriptors(&self, list: &[u8]) -> Outcome<usize> {
        let short = Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH);
        let ten = self.cdb.command.len() == 10;
        let header = if ten { 8 } else { 4 };
        let length = if ten { be16(list, 6).map(usize::from) } else { list.get(3).map(|l| usize::from(*l)) };
        let length = length.ok_or(short)?;
        let descriptor = list.get(header..header + length).ok_or(short)?;
        let long = ten && list.get(4).is_some_and(|flags| flags & 1 != 0);
        let current = self.disk.block_descriptor(long);
        // 0 blocks stands for the present capacity.
        let same = match descriptor.split_at_checked(current.len() / 2) {
            None => descriptor.is_empty(),
            Some((blocks, size)) => {
                let (current_blocks, current_size) = current.split_at(current.len() / 2);
                size == current_size && (blocks == current_blocks || blocks.iter().all(|b| *b == 0))
            }
        };
        if same { Ok(header + length) } else { Err(Sense::parameter(header as u16).into()) }
    }
}

/// The parameters after MODE SELECT of `list`, whose pages begin at `start`. Bits that are not changeable must have
/// their values.
fn selected(list: &[u8], start: usize, old: Modes) -> Outcome<Modes> {
    let masks = changeable();
    let mut modes = old;
    let mut at = start;
    while let Some(rest) = list.get(at..).filter(|rest| !rest.is_empty()) {
        let wrong = |byte: usize| Sense::parameter(u16::try_from(at + byte).unwrap_or(u16::MAX));
        // PS is reserved in MODE SELECT; initiators return the page as they got it.
        let code = rest.first().copied().unwrap_or(0) & 0x7f;
        let current = modes.pages();
        let known = current.iter().zip(&masks).find(|(page, _)| page.first() == Some(&code));
        let (page, mask) = known.ok_or(wrong(0))?;
        let new = rest.get(..page.len()).ok_or(Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH))?;
        let pairs = new.iter().zip(page).zip(mask).enumerate().skip(1);
        let fixed = pairs
            .into_iter()
            .find(|(at, ((new, old), mask))| (*new ^ *old) & if *at == 1 { 0xff } else { !**mask } != 0);
        if let Some((byte, _)) = fixed {
            return Err(wrong(byte).into());
        }
        match code {
            CACHING => modes.write_cache = new.get(2).is_some_and(|b| b & WCE != 0),
            CONTROL => modes.software_write_protect = new.get(4).is_some_and(|b| b & SWP != 0),
            _ => {}
        }
        at += new.len();
    }
    Ok(modes)
}
