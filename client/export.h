/* SPDX-License-Identifier: MIT */
#pragma once

/* Stands before the definition of every public function: the rest of the library is hidden. */
#define ND_PUBLIC __attribute__((visibility("default")))
