{{ cdc_vault.bridge(
  source_model='unit_hub', src_pk='hk_thing', snapshots='unit_snap',
  walk=[{'link': 'unit_link', 'effectivity': 'unit_eff_sat_v1', 'src_pk': 'hk_thing_owner', 'from': 'hk_thing', 'to': ['hk_owner']}],
) }}
