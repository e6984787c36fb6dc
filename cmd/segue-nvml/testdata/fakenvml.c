/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Segue Authors
 *
 * A management library of one device. FAKE_NVML says how it behaves; it has no MIG calls, and with -DNO_INIT, -DNO_ECC
 * or -DNO_COUNT lacks some more. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNSUPPORTED = 3, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };

static int mode(const char *name) {
	const char *m = getenv("FAKE_NVML");
	return m && strcmp(m, name) == 0;
}

static int the_device;
static int reads;

#ifndef NO_INIT
int nvmlInit_v2(void) {
	printf("the library prints to standard output\n");
	fflush(stdout);
	return mode("init") ? NOT_LOADED : OK;
}
#endif
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "999.1"); return OK; }
#ifndef NO_COUNT
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return OK; }
#endif
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) {
	(void)i;
	*d = &the_device;
	return mode("lost") && reads > 1 ? LOST : OK;
}
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { (void)d; snprintf(s, n, "GPU-fake"); return OK; }
int nvmlDeviceGetPciInfo_v3(void *d, char *info) {
	(void)d;
	strcpy(info + 36, "00000000:01:00.0"); /* busId */
	return OK;
}
#ifndef NO_ECC
int nvmlDeviceGetTotalEccErrors(void *d, int type, int counter, unsigned long long *n) {
	(void)d; (void)type; (void)counter;
	reads++;
	while (mode("hang") && reads > 2) pause();
	*n = mode("ecc") && reads > 3 ? 6 : 5;
	return OK;
}
#endif
int nvmlDeviceGetRemappedRows(void *d, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
	(void)d;
	*c = *u = *failed = 0;
	*pending = mode("remap");
	return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *d, int *p) { (void)d; (void)p; return UNSUPPORTED; }
struct field { uint32_t id, scope; int64_t at, took; uint32_t type, ret; union { uint32_t u; uint64_t l; } v; };
int nvmlDeviceGetFieldValues(void *d, int n, struct field *f) {
	(void)d;
	for (int i = 0; i < n; i++) { f[i].ret = f[i].id == 230 ? OK : UNSUPPORTED; f[i].type = 1; f[i].v.u = mode("drain") ? 3 : 0; }
	return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *r) { (void)d; *r = mode("hot") ? 0x40 : 1; return OK; }
int nvmlDeviceGetNvLinkState(void *d, unsigned i, int *up) { (void)d; (void)i; (void)up; return UNSUPPORTED; }
struct event { void *d; unsigned long long type, data; unsigned gpu, compute; };
int nvmlEventSetCreate(void **s) { *s = &the_device; return OK; }
int nvmlEventSetFree(void *s) { (void)s; return OK; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long t, void *s) { (void)d; (void)t; (void)s; return OK; }
int nvmlEventSetWait_v2(void *s, struct event *e, unsigned ms) {
	static int told;
	(void)s;
	usleep(ms * 100);
	if (!mode("xid") || told++) return TIMEOUT;
	e->d = &the_device; e->type = 8; e->data = 79; e->gpu = e->compute = 0xFFFFFFFF;
	return OK;
}
