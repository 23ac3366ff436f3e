//! The configuration space of PCI devices, as `virtio-drivers` asks for it.
#![expect(unsafe_code, reason = "its trait has an unsafe function")]

use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

use crate::arch;

/// The two ports that lead to it. One CPU at a time uses it.
pub(crate) struct Ports;

impl Ports {
    fn select(device: DeviceFunction, register: u8) {
        let device =
            u32::from(device.bus) << 16 | u32::from(device.device) << 11 | u32::from(device.function) << 8;
        arch::out32(0xcf8, 1 << 31 | device | u32::from(register & !3));
    }
}

impl ConfigurationAccess for Ports {
    fn read_word(&self, device: DeviceFunction, register: u8) -> u32 {
        Self::select(device, register);
        arch::in32(0xcfc)
    }

    fn write_word(&mut self, device: DeviceFunction, register: u8, value: u32) {
        Self::select(device, register);
        arch::out32(0xcfc, value);
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Self
    }
}
