// SPDX-License-Identifier: Apache-2.0

// Package uki computes what a boot of a unified kernel image (UKI, UAPI.5) measures, from the file
// only. Package measuredboot creates reference values from the result.
//
// From version 252 on, systemd-stub measures into PCR 11: for each section that it supports, in a
// fixed order that is not the order of the file, the name of the section with a NUL, then its
// content as loaded into memory. Later versions support more sections, always in the same relative
// order. The supported sections are determined from the stub itself, whose code has their names as
// strings. So a distribution's backport is measured correctly, whatever its version number is.
//
// Firmware measures the Authenticode digest of the image into PCR 4 (Windows Authenticode Portable
// Executable Signature Format, "Calculating the PE Image Hash"): the file without its checksum and
// its signatures.
//
// Not supported: images with several profiles (.profile more than once), and sections from which
// the stub selects one for the hardware (.dtbauto, .efifw). They are rejected, because their
// measurements are not one value.
package uki
